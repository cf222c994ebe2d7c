//! Complex transforms in place: factorisation into radices, order of the output, layout in shared memory.
//!
//! A transform of `N = r_0 r_1 ...` points runs one stage for each radix. The forward transform decimates in
//! frequency: stage `i` works on elements `M_i = N / (r_0 .. r_i)` apart and leaves bin
//! `k = k_0 + r_0 (k_1 + r_1 (k_2 + ..))` at position `k_0 M_0 + k_1 M_1 + ..`. The inverse runs the stages
//! backwards from there, so that every butterfly reads and writes the same places and a barrier between two
//! stages is all it takes. Emission and the tests' simulation both go through this file.

/// The most points a transform may have, so that products of indices stay exact in binary32.
pub(super) const MAX_POINTS: usize = 1 << 24;

/// Radices that have a butterfly; products of 2, 3, 5 and 7 up to 16.
const RADICES: [usize; 13] = [16, 15, 14, 12, 10, 9, 8, 7, 6, 5, 4, 3, 2];

/// One stage of a transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stage {
    /// Points of a butterfly.
    pub radix: usize,
    /// Distance between the points of a butterfly.
    pub stride: usize,
}

/// A complex transform and how its points lie in shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transform {
    /// Number of points.
    pub points: usize,
    /// Stages in the order of the forward transform.
    pub stages: Vec<Stage>,
    /// Beside one place in 16, one in `2^skew` is skipped, so that bins in natural order fall into different banks.
    pub skew: u32,
}

/// A skew that skips nothing.
const NO_SKEW: u32 = 31;

impl Transform {
    /// The transform of this size with radices up to `largest`, or `None` if a prime factor exceeds 7.
    pub fn new(points: usize, largest: usize) -> Option<Transform> {
        let radices = factor(points, largest)?;
        let mut stride = points;
        let stages: Vec<Stage> = radices
            .into_iter()
            .map(|radix| {
                stride /= radix;
                Stage { radix, stride }
            })
            .collect();
        let first = stages[0].stride;
        let skew = if first.is_power_of_two() && first > 16 { first.trailing_zeros() } else { NO_SKEW };
        Some(Transform { points, stages, skew })
    }

    /// The largest radix.
    pub fn largest_radix(&self) -> usize {
        self.stages.iter().map(|stage| stage.radix).max().unwrap_or(1)
    }

    /// Where bin `k` lies after the forward transform.
    #[cfg(test)]
    pub fn position(&self, mut bin: usize) -> usize {
        let mut position = 0;
        for stage in &self.stages {
            position += bin % stage.radix * stage.stride;
            bin /= stage.radix;
        }
        position
    }

    /// The bin that lies at a position after the forward transform.
    #[cfg(test)]
    pub fn frequency(&self, position: usize) -> usize {
        let (mut bin, mut weight) = (0, 1);
        for stage in &self.stages {
            bin += position / stage.stride % stage.radix * weight;
            weight *= stage.radix;
        }
        bin
    }

    /// Place of a position within a row of shared memory.
    pub fn padded(&self, position: usize) -> usize {
        position + (position >> 4) + (position >> self.skew)
    }

    /// Complex numbers from one row to the next, if `together` rows are read by neighbouring lanes: 16 lanes
    /// (64-bit accesses go by half warps) then fall into 16 different pairs of banks.
    pub fn row(&self, together: usize) -> usize {
        let length = self.padded(self.points - 1) + 1;
        if together <= 1 {
            return length;
        }
        let shift = (16 / together).max(1);
        (length..).find(|row| row % 16 == shift % 16).unwrap_or(length)
    }

    /// The device functions that this file's `position` and `frequency` are.
    pub fn digit_functions(&self) -> String {
        let mut position = Vec::new();
        let mut frequency = Vec::new();
        let mut weight = 1;
        let last = self.stages.len() - 1;
        for (index, stage) in self.stages.iter().enumerate() {
            let digit =
                if index == last { format!("bin / {weight}u") } else { format!("bin / {weight}u % {}u", stage.radix) };
            position.push(format!("{digit} * {}u", stage.stride));
            let digit = if index == 0 {
                format!("position / {}u", stage.stride)
            } else {
                format!("position / {}u % {}u", stage.stride, stage.radix)
            };
            frequency.push(format!("{digit} * {weight}u"));
            weight *= stage.radix;
        }
        format!(
            "__device__ __forceinline__ uint32 position_of(uint32 bin) {{\n    return {};\n}}\n\
             __device__ __forceinline__ uint32 bin_at(uint32 position) {{\n    return {};\n}}\n",
            position.join(" + "),
            frequency.join(" + ")
        )
    }
}

/// Radices of fewest stages, among those of fewest operations, largest first; `[1]` for one point.
fn factor(points: usize, largest: usize) -> Option<Vec<usize>> {
    if points == 1 {
        return Some(vec![1]);
    }
    if !(2..=MAX_POINTS).contains(&points) || !is_smooth(points) {
        return None;
    }
    let mut best: Option<Vec<usize>> = None;
    search(points, largest, &mut Vec::new(), &mut best);
    best
}

fn is_smooth(mut n: usize) -> bool {
    for prime in [2, 3, 5, 7] {
        while n.is_multiple_of(prime) {
            n /= prime;
        }
    }
    n == 1
}

fn search(rest: usize, largest: usize, chosen: &mut Vec<usize>, best: &mut Option<Vec<usize>>) {
    // Fewest stages first, then the smallest sum, which is also the most even split.
    let rank = |radices: &[usize]| (radices.len(), radices.iter().sum::<usize>());
    if rest == 1 {
        if best.as_ref().is_none_or(|best| rank(chosen) < rank(best)) {
            *best = Some(chosen.clone());
        }
        return;
    }
    let mut reach = largest;
    let mut needed = chosen.len() + 1;
    while reach < rest {
        reach = reach.saturating_mul(largest);
        needed += 1;
    }
    if best.as_ref().is_some_and(|best| needed > best.len()) {
        return;
    }
    for radix in RADICES.into_iter().filter(|&radix| radix <= largest && rest.is_multiple_of(radix)) {
        chosen.push(radix);
        search(rest / radix, radix, chosen, best);
        chosen.pop();
    }
}

/// Splits a transform too large for shared memory into columns of `.0` points and rows of `.1`, both at least
/// two stages long, as evenly as possible with `.0 <= .1`.
pub(super) fn split(points: usize) -> Option<(usize, usize)> {
    let mut columns = points.isqrt();
    while columns > 16 {
        if points.is_multiple_of(columns) {
            return Some((columns, points / columns));
        }
        columns -= 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn radices(points: usize, largest: usize) -> Vec<usize> {
        Transform::new(points, largest).unwrap().stages.iter().map(|stage| stage.radix).collect()
    }

    #[test]
    fn fewest_stages_then_fewest_operations() {
        assert_eq!(radices(1, 16), [1]);
        assert_eq!(radices(2, 16), [2]);
        assert_eq!(radices(4096, 16), [16, 16, 16]);
        assert_eq!(radices(8192, 16), [16, 8, 8, 8]);
        assert_eq!(radices(4096, 8), [8, 8, 8, 8]);
        assert_eq!(radices(1000, 16), [10, 10, 10]);
        assert_eq!(radices(135, 16), [15, 9]);
        // 2 * 3 * 7^3: no three radices up to 16 reach it.
        assert_eq!(radices(2058, 16).len(), 4);
    }

    #[test]
    fn other_prime_factors_have_no_transform() {
        for points in [0, 11, 13, 22, 2 * 17, MAX_POINTS * 2] {
            assert_eq!(Transform::new(points, 16), None, "{points}");
        }
    }

    #[test]
    fn positions_and_bins_are_inverse_to_each_other() {
        for points in [1, 2, 3, 7, 15, 60, 105, 210, 512, 1000, 1080, 4096] {
            for largest in [8, 16] {
                let transform = Transform::new(points, largest).unwrap();
                for bin in 0..points {
                    let position = transform.position(bin);
                    assert!(position < points);
                    assert_eq!(transform.frequency(position), bin);
                }
            }
        }
    }

    #[test]
    fn places_in_shared_memory_are_distinct_and_split_over_powers_of_two() {
        for points in [16, 60, 1000, 4096, 8192] {
            let transform = Transform::new(points, 16).unwrap();
            let places: Vec<usize> = (0..points).map(|position| transform.padded(position)).collect();
            assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(places[points - 1] < transform.row(1));
            for stage in transform.stages.iter().filter(|s| s.radix.is_power_of_two() && s.stride.is_power_of_two()) {
                for butterfly in 0..points / stage.radix {
                    let base = butterfly / stage.stride * (stage.radix * stage.stride) + butterfly % stage.stride;
                    for q in 0..stage.radix {
                        let whole = transform.padded(base + q * stage.stride);
                        assert_eq!(whole, transform.padded(base) + transform.padded(q * stage.stride));
                    }
                }
            }
        }
    }

    #[test]
    fn large_transforms_split_evenly() {
        assert_eq!(split(1_000_000), Some((1000, 1000)));
        assert_eq!(split(1 << 15), Some((128, 256)));
        assert_eq!(split(1 << 20), Some((1024, 1024)));
        assert_eq!(split(16807), Some((49, 343)));
        assert_eq!(split(64), None);
    }
}
