//! The kernels' index arithmetic, lane by lane, held against the definition.
//!
//! The device code is followed as it is written: what staging puts where in shared memory, which addresses a lane
//! reads, which elements of a matrix its registers are. Shared memory starts out as NaN, so that reading what nothing
//! wrote shows. Values are small whole numbers, so that sums are exact in any order.

use hyenac_ir::DType;

use super::geometry::{Geometry, Operands, Schedule, copy_elements};
use super::recognise::Convolution;
use super::{NAME, tests::gated};
use crate::device::Device;

struct Case {
    batches: usize,
    channels: usize,
    length: usize,
    schedule: Schedule,
    geometry: Geometry,
}

impl Case {
    fn new(operands: Operands, sizes: [usize; 3], schedule: [usize; 6]) -> Case {
        let [batches, channels, length] = sizes;
        let [positions, group, warps, block_channels, block_batches, splits] = schedule;
        let dtype = if operands == Operands::F16 { DType::F16 } else { DType::F32 };
        let convolution = Convolution::of(&gated(batches, channels, length, dtype, DType::F32)).unwrap();
        let family = NAME.to_owned();
        let (channels_, batches_) = (block_channels, block_batches);
        let schedule =
            Schedule { family, operands, positions, group, warps, channels: channels_, batches: batches_, splits };
        let geometry = Geometry::new(&convolution, &schedule, &Device::h200()).unwrap();
        Case { batches, channels, length, schedule, geometry }
    }

    fn signal(&self, batch: usize, channel: usize, time: usize) -> f32 {
        ((batch * 31 + channel * 17 + time * 7 + time * time * 3) % 7) as f32 - 3.0
    }

    fn filter(&self, channel: usize, tap: usize) -> f32 {
        ((channel * 13 + tap * 5 + tap * tap) % 5) as f32 - 2.0
    }

    fn expected(&self, batch: usize, channel: usize, time: usize) -> f32 {
        (0..=time).map(|tap| self.filter(channel, tap) * self.signal(batch, channel, time - tap)).sum()
    }

    /// Runs every thread block; `group` computes results[column][position] of one item from one channel's share of
    /// shared memory.
    fn check(&self, channel_elements: usize, row: usize, group: impl Fn(&Case, &[f32], usize) -> Vec<Vec<f32>>) {
        let (s, g) = (&self.schedule, &self.geometry);
        let (channel_blocks, batch_blocks) = (self.channels.div_ceil(s.channels), self.batches.div_ceil(s.batches));
        let mut result = vec![f32::NAN; self.batches * self.channels * self.length];
        for block in 0..g.thread_blocks as usize {
            let first_channel = block % channel_blocks * s.channels;
            let first_batch = block / channel_blocks % batch_blocks * s.batches;
            let split = block / channel_blocks / batch_blocks;
            let shared: Vec<Vec<f32>> = (0..s.channels)
                .map(|channel| self.stage(first_channel + channel, first_batch, channel_elements, row))
                .collect();
            for position in 0..g.split_groups * s.channels {
                let (turn, channel) = (position / s.channels, position % s.channels);
                let rank = turn * s.splits + if turn % 2 == 1 { s.splits - 1 - split } else { split };
                if rank >= g.groups || first_channel + channel >= self.channels {
                    continue;
                }
                let first_column = (g.groups - 1 - rank) * s.group;
                for (column, values) in group(self, &shared[channel], first_column).iter().enumerate() {
                    let c = first_column + column;
                    for (position, &value) in values.iter().enumerate() {
                        let (batch, time) = (first_batch + c % s.batches, c / s.batches * s.positions + position);
                        if c < g.time_blocks * s.batches && batch < self.batches && time < self.length {
                            let at = (batch * self.channels + first_channel + channel) * self.length + time;
                            assert!(result[at].is_nan(), "{batch} {channel} {time} is computed twice");
                            result[at] = value;
                        }
                    }
                }
            }
        }
        for batch in 0..self.batches {
            for channel in 0..self.channels {
                for time in 0..self.length {
                    let at = (batch * self.channels + channel) * self.length + time;
                    let expected = self.expected(batch, channel, time);
                    assert_eq!(result[at], expected, "{:?} batch {batch} channel {channel} time {time}", self.schedule);
                }
            }
        }
    }

    /// One channel's share of shared memory.
    fn stage(&self, channel: usize, first_batch: usize, elements: usize, row: usize) -> Vec<f32> {
        let (s, g) = (&self.schedule, &self.geometry);
        let (columns, rows) = (g.time_blocks * s.batches, (g.groups + 1) * s.group);
        let padded = g.time_blocks * s.positions;
        let mut shared = vec![f32::NAN; elements];
        shared[..s.group * row].fill(0.0);
        shared[(s.group + columns) * row..rows * row].fill(0.0);
        let filter = rows * row;
        for time in 0..padded {
            let known = time < self.length && channel < self.channels;
            for batch in 0..s.batches {
                let inside = known && first_batch + batch < self.batches;
                shared[(s.group + time / s.positions * s.batches + batch) * row + time % s.positions] =
                    if inside { self.signal(first_batch + batch, channel, time) } else { 0.0 };
            }
            let tap = if known { self.filter(channel, time) } else { 0.0 };
            match s.operands {
                Operands::F16 => {
                    shared[filter + padded - time] = tap;
                    shared[filter + copy_elements(padded) + padded - time - 1] = tap;
                }
                Operands::F32 => shared[filter + time] = tap,
            }
        }
        if s.operands == Operands::F16 {
            for i in 0..7 {
                shared[filter + padded + 1 + i] = 0.0;
                shared[filter + copy_elements(padded) + padded + i] = 0.0;
            }
        }
        shared
    }
}

/// mma.sync.m16n8k16: lane 4 g + t holds a0..a3 = A[g | g + 8, 2 t .. | 2 t + 8 ..], b0, b1 = B[2 t .. | 2 t + 8 .., g],
/// d0..d3 = D[g, 2 t], D[g, 2 t + 1], D[g + 8, 2 t], D[g + 8, 2 t + 1].
fn multiply_accumulate(d: &mut [[f32; 4]; 32], a: &[[[f32; 2]; 4]; 32], b: &[[[f32; 2]; 2]; 32]) {
    let (mut left, mut right) = ([[0.0f32; 16]; 16], [[0.0f32; 8]; 16]);
    for lane in 0..32 {
        let (g, t) = (lane / 4, lane % 4);
        for half in 0..2 {
            for (register, (row, k)) in
                [(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)].into_iter().enumerate()
            {
                left[row][k + half] = a[lane][register][half];
            }
            for register in 0..2 {
                right[2 * t + 8 * register + half][g] = b[lane][register][half];
            }
        }
    }
    for (lane, sums) in d.iter_mut().enumerate() {
        for (register, sum) in sums.iter_mut().enumerate() {
            let (row, column) = (lane / 4 + 8 * (register / 2), 2 * (lane % 4) + register % 2);
            *sum += (0..16).map(|k| left[row][k] * right[k][column]).sum::<f32>();
        }
    }
}

/// A warp's work of `direct_convolution_f16`, with P + 8 elements a row.
fn tensor_group(case: &Case, shared: &[f32], first_column: usize) -> Vec<Vec<f32>> {
    let (s, g) = (&case.schedule, &case.geometry);
    let (tiles, row) = (s.positions / 16, s.positions + 8);
    let padded = g.time_blocks * s.positions;
    let signal = (g.groups + 1) * s.group * row;
    // H(j) of diagonal m; an address must be even, since the pair is one 4-byte load.
    let pair = |lane: usize, j: usize| {
        let (g, t) = (lane / 4, lane % 4);
        let at = signal + (g & 1) * copy_elements(padded) + padded - g + 2 * t - (g & 1) - 8 * j;
        assert_eq!(at % 2, 0);
        [shared[at], shared[at + 1]]
    };
    let last = ((first_column + s.group - 1) / s.batches).min(g.time_blocks - 1);
    let mut sums = vec![vec![[[0.0f32; 4]; 32]; tiles]; s.group / 8];
    let zero = [[[0.0f32; 2]; 4]; 32];
    let mut above = vec![zero; tiles];
    let mut edge = [[0.0f32; 2]; 32];
    for m in 0..=last {
        let mut here = vec![zero; tiles];
        for (i, tile) in here.iter_mut().enumerate() {
            for lane in 0..32 {
                let (even, odd) = (pair(lane, 2 * (tiles * m + i)), pair(lane, 2 * (tiles * m + i) + 1));
                tile[lane] = [even, odd, edge[lane], even];
                edge[lane] = odd;
            }
        }
        for (n, sums) in sums.iter_mut().enumerate() {
            for s_tile in 0..tiles {
                let mut b = [[[0.0f32; 2]; 2]; 32];
                for (lane, registers) in b.iter_mut().enumerate() {
                    for (register, pair) in registers.iter_mut().enumerate() {
                        // ldmatrix: row lane / 4 of matrix `chunk`, elements 2 (lane % 4) and the next.
                        let chunk = 2 * s_tile + register;
                        let start = (s.group + first_column + lane / 4 + 8 * n - m * s.batches) * row + chunk * 8;
                        assert_eq!(start % 8, 0);
                        *pair = [shared[start + 2 * (lane % 4)], shared[start + 2 * (lane % 4) + 1]];
                    }
                }
                for (r, sum) in sums.iter_mut().enumerate() {
                    if r >= s_tile {
                        multiply_accumulate(sum, &here[r - s_tile], &b);
                    } else if m > 0 {
                        multiply_accumulate(sum, &above[tiles + r - s_tile], &b);
                    }
                }
            }
        }
        above = here;
    }
    let mut results = vec![vec![0.0f32; s.positions]; s.group];
    for (n, sums) in sums.iter().enumerate() {
        for (r, sum) in sums.iter().enumerate() {
            for (lane, values) in sum.iter().enumerate() {
                for (register, &value) in values.iter().enumerate() {
                    let column = 8 * n + 2 * (lane % 4) + register % 2;
                    results[column][16 * r + lane / 4 + 8 * (register / 2)] = value;
                }
            }
        }
    }
    results
}

/// A warp's work of `direct_convolution_f32`, with P + 4 elements a row.
fn plain_group(case: &Case, shared: &[f32], first_column: usize) -> Vec<Vec<f32>> {
    let (s, g) = (&case.schedule, &case.geometry);
    let (p, row) = (s.positions, s.positions + 4);
    let filter = (g.groups + 1) * s.group * row;
    let diagonals = ((first_column + s.group - 1) / s.batches).min(g.time_blocks - 1) + 1;
    (0..32)
        .map(|lane| {
            let mut sums = vec![0.0f32; p];
            for m in 0..diagonals {
                let x = (s.group + first_column + lane - m * s.batches) * row;
                for (r, sum) in sums.iter_mut().enumerate() {
                    for offset in 0..p {
                        let tap = (m * p + r).checked_sub(offset);
                        *sum += tap.map_or(0.0, |tap| shared[filter + tap]) * shared[x + offset];
                    }
                }
            }
            sums
        })
        .collect()
}

fn check_tensor_cores(sizes: [usize; 3], schedule: [usize; 6]) {
    let case = Case::new(Operands::F16, sizes, schedule);
    let row = case.schedule.positions + 8;
    let elements = (case.geometry.groups + 1) * case.schedule.group * row
        + 2 * copy_elements(case.geometry.time_blocks * case.schedule.positions);
    case.check(elements, row, tensor_group);
}

fn check_plain(sizes: [usize; 3], schedule: [usize; 6]) {
    let case = Case::new(Operands::F32, sizes, schedule);
    let row = case.schedule.positions + 4;
    let elements =
        (case.geometry.groups + 1) * case.schedule.group * row + case.geometry.time_blocks * case.schedule.positions;
    case.check(elements, row, plain_group);
}

#[test]
fn toeplitz_tiles_compute_the_convolution() {
    // Batches, channels, length; positions, group, warps, channels, batches and splits of the schedule.
    check_tensor_cores([1, 2, 1], [16, 8, 2, 1, 1, 1]);
    check_tensor_cores([1, 3, 131], [64, 8, 2, 2, 1, 1]);
    check_tensor_cores([3, 1, 131], [32, 16, 2, 1, 3, 1]);
    check_tensor_cores([2, 2, 541], [64, 16, 4, 1, 2, 2]);
    check_tensor_cores([5, 1, 256], [64, 16, 8, 1, 2, 1]);
    check_tensor_cores([9, 1, 72], [16, 8, 4, 1, 5, 4]);
    check_tensor_cores([32, 1, 40], [16, 16, 8, 1, 32, 1]);
    check_tensor_cores([1, 1, 997], [64, 8, 8, 1, 1, 4]);
    check_tensor_cores([1, 1, 2053], [64, 16, 8, 1, 1, 1]);
}

#[test]
fn the_sliding_window_computes_the_convolution() {
    check_plain([1, 2, 1], [8, 32, 2, 2, 1, 1]);
    check_plain([3, 1, 131], [8, 32, 2, 1, 2, 1]);
    check_plain([2, 2, 541], [16, 32, 4, 1, 2, 2]);
    check_plain([40, 1, 24], [8, 32, 8, 1, 40, 1]);
    check_plain([1, 1, 2053], [16, 32, 8, 1, 1, 4]);
}

#[test]
fn the_copies_of_the_filter_lie_sixteen_banks_apart() {
    for padded in (16..=16384).step_by(16) {
        let words = copy_elements(padded) / 2;
        assert_eq!(words % 32, 16);
        assert!(copy_elements(padded) >= padded + 8);
        // The pairs of a warp: seven consecutive words of each copy, in different banks.
        let banks = |copy: usize| -> Vec<usize> {
            let words = (0..4).flat_map(|h| (0..4).map(move |t| (padded / 2 + copy * words - copy - h + t) % 32));
            words.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
        };
        assert_eq!((banks(0).len(), banks(1).len()), (7, 7));
        assert!(banks(0).iter().all(|bank| !banks(1).contains(bank)));
    }
}
