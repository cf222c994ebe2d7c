//! The kernels' algorithm, stage by stage, on the stages that emission uses, against the definition.

use std::f64::consts::PI;

use super::butterfly::{Butterfly, Complex};
use super::radix::{Transform, split};

fn product(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

/// `exp(-2 pi i j / size)`.
fn root(j: usize, size: usize) -> Complex {
    let (sin, cos) = (-2.0 * PI * (j % size) as f64 / size as f64).sin_cos();
    (cos, sin)
}

fn bases(transform: &Transform, radix: usize, stride: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
    (0..transform.points / radix).map(move |butterfly| {
        let j = butterfly % stride;
        (butterfly / stride * (radix * stride) + j, j)
    })
}

/// Bins in scrambled order; inputs from `filled` on are zero and never read.
fn forward(transform: &Transform, data: &mut [Complex], filled: usize) {
    for (index, stage) in transform.stages.iter().enumerate() {
        let (radix, stride) = (stage.radix, stage.stride);
        let occupied = if index == 0 { filled.div_ceil(stride).min(radix) } else { radix };
        let butterfly = Butterfly::new(radix, occupied);
        for (base, j) in bases(transform, radix, stride) {
            let zero_beyond =
                |position: usize| if index == 0 && position >= filled { (0.0, 0.0) } else { data[position] };
            let inputs: Vec<Complex> = (0..radix).map(|q| zero_beyond(base + q * stride)).collect();
            for (q, value) in butterfly.run(&inputs).into_iter().enumerate() {
                data[base + q * stride] = product(value, root(q * j, radix * stride));
            }
        }
    }
}

/// From bins in scrambled order, parts exchanged, to `points` times the points, parts exchanged.
fn inverse(transform: &Transform, data: &mut [Complex]) {
    for stage in transform.stages.iter().rev() {
        let (radix, stride) = (stage.radix, stage.stride);
        let butterfly = Butterfly::new(radix, radix);
        for (base, j) in bases(transform, radix, stride) {
            let inputs: Vec<Complex> =
                (0..radix).map(|q| product(data[base + q * stride], root(q * j, radix * stride))).collect();
            for (q, value) in butterfly.run(&inputs).into_iter().enumerate() {
                data[base + q * stride] = value;
            }
        }
    }
}

/// `real_bins` of the device half.
fn real_bins(z: Complex, m: Complex, w: Complex) -> (Complex, Complex) {
    let even = (0.5 * (z.0 + m.0), 0.5 * (z.1 - m.1));
    let odd = (0.5 * (z.1 + m.1), 0.5 * (m.0 - z.0));
    let t = product(w, odd);
    ((even.0 + t.0, even.1 + t.1), (even.0 - t.0, t.1 - even.1))
}

/// `complex_bins` of the device half.
fn complex_bins(x: Complex, m: Complex, w: Complex, scale: f64) -> (Complex, Complex) {
    let even = (scale * (x.0 + m.0), scale * (x.1 - m.1));
    let half = (scale * (x.0 - m.0), scale * (x.1 + m.1));
    let odd = (half.0 * w.0 + half.1 * w.1, half.1 * w.0 - half.0 * w.1);
    ((even.1 + odd.0, even.0 - odd.1), (odd.0 - even.1, even.0 + odd.1))
}

fn packed(x: &[f64], points: usize) -> Vec<Complex> {
    let at = |t: usize| x.get(t).copied().unwrap_or(0.0);
    (0..points).map(|j| (at(2 * j), at(2 * j + 1))).collect()
}

fn signal(length: usize, seed: usize) -> Vec<f64> {
    (0..length).map(|t| (((t * 7919 + seed * 104_729) % 1009) as f64 / 1009.0 - 0.5) * 2.0).collect()
}

/// Bin `k` of the real transform of this size, by definition.
fn bin(x: &[f64], k: usize, size: usize) -> Complex {
    x.iter().enumerate().fold((0.0, 0.0), |total, (t, &value)| {
        let w = root(t * k, size);
        (total.0 + value * w.0, total.1 + value * w.1)
    })
}

fn near(a: Complex, b: Complex, size: usize) -> bool {
    (a.0 - b.0).hypot(a.1 - b.1) < 1e-10 * size as f64
}

/// Pairs of places and the bin of the first, as the kernel of one block with its own filter walks them.
fn pairs_in_order_of_places(transform: &Transform) -> Vec<(usize, usize, usize)> {
    let first = transform.stages[0];
    let mut pairs = Vec::new();
    for position in 0..(first.radix / 2 + 1) * first.stride {
        let bin = transform.frequency(position);
        let mirror = transform.points - bin;
        let digit = position / first.stride;
        if (digit == 0 || 2 * digit == first.radix) && bin > mirror {
            continue;
        }
        pairs.push((position, transform.position(if bin == 0 { 0 } else { mirror }), bin));
    }
    pairs
}

const POINTS: [usize; 18] = [1, 2, 3, 4, 5, 7, 15, 16, 35, 63, 105, 128, 256, 270, 540, 1000, 1080, 2048];

#[test]
fn a_block_transforms_convolves_and_transforms_back() {
    for points in POINTS {
        for largest in [8, 16] {
            let transform = Transform::new(points, largest).unwrap();
            for length in [1, points.div_ceil(2), points, 2 * points] {
                let x = signal(length, points);
                let mut z = packed(&x, points);
                forward(&transform, &mut z, length.div_ceil(2));
                let mut seen = vec![false; points + 1];
                for (at_bin, at_mirror, k) in pairs_in_order_of_places(&transform) {
                    let w = root(k, 2 * points);
                    let (low, high) = real_bins(z[at_bin], z[at_mirror], w);
                    assert!(near(low, bin(&x, k, 2 * points), points), "{points} {length} bin {k}");
                    assert!(near(high, bin(&x, points - k, 2 * points), points), "{points} {length} mirror of {k}");
                    assert!(!seen[k] && (2 * k == points || !seen[points - k]), "bin {k} twice");
                    (seen[k], seen[points - k]) = (true, true);
                    (z[at_bin], z[at_mirror]) = complex_bins(low, high, w, 0.5 / points as f64);
                }
                assert!(seen.iter().all(|&seen| seen), "{points}: some bin is missing");
                inverse(&transform, &mut z);
                for (j, expected) in packed(&x, points).into_iter().enumerate() {
                    assert!(near((z[j].1, z[j].0), expected, points), "{points} {length} point {j}");
                }
            }
        }
    }
}

#[test]
fn columns_and_rows_make_one_transform_and_mirrors_meet_in_pairs_of_rows() {
    for (tall, wide) in [(18, 20), (20, 21), (21, 25), (27, 32), (32, 64)] {
        let points = tall * wide;
        let (column, row) = (Transform::new(tall, 16).unwrap(), Transform::new(wide, 8).unwrap());
        let x = signal(2 * points - 3, tall);
        let z = packed(&x, points);
        let mut work = vec![(0.0, 0.0); points];
        for j in 0..wide {
            let mut data: Vec<Complex> = (0..tall).map(|i| z[i * wide + j]).collect();
            forward(&column, &mut data, tall);
            for (position, &value) in data.iter().enumerate() {
                let k = column.frequency(position);
                work[k * wide + j] = product(value, root(j * k, points));
            }
        }
        for line in work.chunks_mut(wide) {
            forward(&row, line, wide);
        }
        // The walk of the kernel over rows.
        let mut seen = vec![false; points + 1];
        for first in 0..=tall / 2 {
            for position in 0..wide {
                let second = row.frequency(position);
                let k = first + tall * second;
                let mirror = points - k;
                let alone = first == 0 || 2 * first == tall;
                if alone && k > mirror {
                    continue;
                }
                let opposite = if first > 0 {
                    wide - 1 - second
                } else if second > 0 {
                    wide - second
                } else {
                    0
                };
                let mirror_row = if alone { first } else { tall - first };
                let (at_bin, at_mirror) = (first * wide + position, mirror_row * wide + row.position(opposite));
                let w = root(k, 2 * points);
                let (low, high) = real_bins(work[at_bin], work[at_mirror], w);
                assert!(near(low, bin(&x, k, 2 * points), points), "{tall} x {wide}, bin {k}");
                assert!(near(high, bin(&x, mirror, 2 * points), points), "{tall} x {wide}, mirror of {k}");
                assert!(!seen[k] && (k == mirror || !seen[mirror]), "bin {k} twice");
                (seen[k], seen[mirror]) = (true, true);
                (work[at_bin], work[at_mirror]) = complex_bins(low, high, w, 0.5 / points as f64);
            }
        }
        assert!(seen.iter().all(|&seen| seen), "{tall} x {wide}: some bin is missing");
        for line in work.chunks_mut(wide) {
            inverse(&row, line);
        }
        for j in 0..wide {
            let mut data = vec![(0.0, 0.0); tall];
            for (position, value) in data.iter_mut().enumerate() {
                let k = column.frequency(position);
                *value = product(work[k * wide + j], root(j * k, points));
            }
            inverse(&column, &mut data);
            for (i, &value) in data.iter().enumerate() {
                assert!(near((value.1, value.0), z[i * wide + j], points), "{tall} x {wide}, point {i} {j}");
            }
        }
    }
}

#[test]
fn large_splits_cover_every_bin_once() {
    for points in [16384, 20000, 32768, 160_000, 1_000_000] {
        let (tall, wide) = split(points).unwrap();
        let mut seen = vec![0u8; points + 1];
        for first in 0..=tall / 2 {
            for second in 0..wide {
                let k = first + tall * second;
                if (first == 0 || 2 * first == tall) && k > points - k {
                    continue;
                }
                seen[k] += 1;
                if k != points - k {
                    seen[points - k] += 1;
                }
            }
        }
        assert!(seen.iter().all(|&count| count == 1), "{points}");
    }
}
