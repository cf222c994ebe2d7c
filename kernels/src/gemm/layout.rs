//! Schedules, and where their tiles lie in shared memory.

use std::borrow::Cow;
use std::fmt::Write;

use hyenac_ir::DType;
use serde::{Deserialize, Serialize};

use super::Parts;

/// Tiles worth trying: rows, columns, warps down, warps across.
const TILES: [[usize; 4]; 10] = [
    [128, 128, 2, 4],
    [128, 64, 4, 2],
    [64, 128, 2, 4],
    [64, 64, 2, 2],
    [64, 32, 4, 1],
    [32, 64, 2, 2],
    [32, 32, 2, 2],
    [16, 128, 1, 4],
    [16, 64, 1, 4],
    [16, 32, 1, 4],
];
/// Shared memory that a resident block costs beside its own.
const RESERVED_BYTES: usize = 1024;
const REGISTERS: usize = 65536;

/// How a product is cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Name of the family.
    pub family: Cow<'static, str>,
    /// Rows of a tile.
    pub rows: usize,
    /// Columns of a tile.
    pub columns: usize,
    /// Warps down and across a tile.
    pub warps: [usize; 2],
    /// Elements of the inner dimension between two barriers.
    pub step: usize,
    /// Steps under way at a time, the one that is multiplied included.
    pub stages: usize,
    /// Whether all of the inner dimension of the left tile stays in shared memory.
    pub resident: bool,
    /// Column tiles of a block, one after the other.
    pub column_tiles: usize,
}

impl Schedule {
    /// Every schedule that fits the product and the shared memory of a block.
    pub fn all(parts: &Parts, shared_limit: usize) -> Vec<(Schedule, Layout)> {
        let f16 = parts.product.precision == DType::F16;
        let steps: &[usize] = if f16 { &[64, 32] } else { &[32, 16] };
        let residence: &[bool] = if parts.left.is_normalised() { &[true] } else { &[false, true] };
        let mut all = Vec::new();
        for [rows, columns, down, across] in TILES {
            // Tiles much wider than the product only multiply zeros; a halo wants more rows than it has itself.
            let narrower = columns > 32 && columns / 2 >= parts.product.columns;
            let lower = rows > 16 && rows / 2 >= parts.product.rows;
            if narrower || lower || parts.halo() * 4 > rows {
                continue;
            }
            for &step in steps {
                if step > steps[1] && step / 2 >= parts.product.inner {
                    continue;
                }
                for stages in [8, 6, 4, 3, 2] {
                    // Deep pipelines are for small tiles, whose steps are shorter than a load.
                    if stages > 4 && rows * columns > 64 * 64 {
                        continue;
                    }
                    for &resident in residence {
                        for column_tiles in [1, 2, 4, 8] {
                            let repeats = column_tiles > 1;
                            if repeats && (!resident || (column_tiles - 1) * columns >= parts.product.columns) {
                                continue;
                            }
                            // A copied tile only stays for the sake of the column tiles that follow.
                            if resident && !repeats && parts.left.direct {
                                continue;
                            }
                            if stages > 2 && stages > column_tiles * parts.product.inner.div_ceil(step) + 1 {
                                continue;
                            }
                            let schedule = Schedule {
                                family: Cow::Borrowed(super::NAME),
                                rows,
                                columns,
                                warps: [down, across],
                                step,
                                stages,
                                resident,
                                column_tiles,
                            };
                            let layout = Layout::of(parts, &schedule);
                            if layout.shared_bytes <= shared_limit && layout.blocks() <= i32::MAX as usize {
                                all.push((schedule, layout));
                            }
                        }
                    }
                }
            }
        }
        all
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        32 * self.warps[0] * self.warps[1]
    }

    /// Registers that a thread wants: its accumulators and about as much for fragments and addresses, or the rows
    /// that it normalises.
    pub fn registers(&self, parts: &Parts) -> usize {
        let precision = parts.product.precision;
        let accumulators = self.rows * self.columns / self.threads();
        let fragments = (self.rows / self.warps[0] + self.columns / self.warps[1]) / 4;
        let split = if precision == DType::F32 { 2 } else { 1 };
        let multiplying = accumulators + split * fragments + 48;
        let normalising = match (parts.left.is_normalised(), precision) {
            (false, _) => 0,
            (true, DType::F16) => 104,
            (true, _) => 136,
        };
        multiplying.max(normalising).next_multiple_of(8).clamp(64, 255)
    }

    /// Blocks that a multiprocessor holds at once.
    pub fn blocks_per_multiprocessor(&self, layout: &Layout, parts: &Parts, shared_limit: usize) -> usize {
        let by_memory = (shared_limit + RESERVED_BYTES) / (layout.shared_bytes + RESERVED_BYTES);
        let by_registers = REGISTERS / (self.threads() * self.registers(parts));
        let by_threads = 2048 / self.threads();
        by_memory.min(by_registers).min(by_threads).clamp(1, 8)
    }
}

/// Extents and offsets of a schedule for a product. Everything in bytes but pitches, which are in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Steps of the inner dimension.
    pub steps: usize,
    /// Rows of a tile that repeat those of the tile before.
    pub halo: usize,
    /// Tiles down the rows.
    pub row_tiles: usize,
    /// Groups of column tiles; one block each.
    pub column_groups: usize,
    /// Dynamic shared memory.
    pub shared_bytes: usize,
    a_pitch: usize,
    b_pitch: usize,
    tile_pitch: usize,
    a_bytes: usize,
    b_bytes: usize,
    a_landing_bytes: usize,
    b_landing_bytes: usize,
    a_offset: usize,
    b_offset: usize,
    a_landing_offset: usize,
    b_landing_offset: usize,
    tile_offset: usize,
}

impl Layout {
    fn of(parts: &Parts, schedule: &Schedule) -> Layout {
        let Parts { product, left, right, epilogue, .. } = parts;
        let element = product.element_bytes();
        let threads = schedule.threads();
        let steps = product.inner.div_ceil(schedule.step);
        let halo = parts.halo();
        let depth = if schedule.resident { steps * schedule.step } else { schedule.step };
        let a_pitch = if left.along_inner { depth + 16 / element } else { schedule.rows + 8 };
        let a_bytes = element * a_pitch * if left.along_inner { schedule.rows } else { depth };
        let b_pitch = schedule.step + 16 / element;
        let b_bytes = element * b_pitch * schedule.columns;
        // Words of all groups of a step, whole rounds of the block.
        let landing = |major: usize, width: usize, words: usize| {
            (major * schedule.step / width).next_multiple_of(threads) * words * 4
        };
        let a_landing_bytes =
            if schedule.resident || left.direct { 0 } else { landing(schedule.rows, left.width, left.group.words) };
        let b_landing_bytes = if right.direct { 0 } else { landing(schedule.columns, right.width, right.group.words) };
        let slots = |direct: bool| if direct { schedule.stages } else { 2 };
        let a_slots = if schedule.resident { 1 } else { slots(left.direct) };

        let a_offset = 0;
        let b_offset = a_offset + a_slots * a_bytes;
        let a_landing_offset = b_offset + slots(right.direct) * b_bytes;
        let b_landing_offset = a_landing_offset + schedule.stages * a_landing_bytes;
        let operands = b_landing_offset + schedule.stages * b_landing_bytes;
        // Pitches of the product tile are chosen so that the fragments of a warp are written without bank conflicts.
        let (tile_pitch, tile_lines) = if epilogue.along_rows {
            (schedule.rows + 4, schedule.columns)
        } else {
            (schedule.columns + 8, schedule.rows)
        };
        let tile_bytes = 4 * tile_pitch * tile_lines;
        let (tile_offset, shared_bytes) =
            if schedule.column_tiles == 1 { (0, operands.max(tile_bytes)) } else { (operands, operands + tile_bytes) };
        Layout {
            steps,
            halo,
            row_tiles: product.walked_rows().div_ceil(schedule.rows - halo),
            column_groups: product.columns.div_ceil(schedule.columns * schedule.column_tiles),
            shared_bytes,
            a_pitch,
            b_pitch,
            tile_pitch,
            a_bytes,
            b_bytes,
            a_landing_bytes,
            b_landing_bytes,
            a_offset,
            b_offset,
            a_landing_offset,
            b_landing_offset,
            tile_offset,
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.row_tiles * self.column_groups
    }

    /// The byte ranges of the slots of all operands, and of the product tile where it has its own.
    #[cfg(test)]
    pub fn pieces(&self, parts: &Parts, schedule: &Schedule) -> Vec<std::ops::Range<usize>> {
        let run = |offset: usize, bytes: usize, count: usize| {
            (0..count).map(move |slot| offset + slot * bytes..offset + (slot + 1) * bytes)
        };
        let slots = |direct: bool| if direct { schedule.stages } else { 2 };
        let a_slots = if schedule.resident { 1 } else { slots(parts.left.direct) };
        let mut pieces: Vec<_> = run(self.a_offset, self.a_bytes, a_slots).collect();
        pieces.extend(run(self.b_offset, self.b_bytes, slots(parts.right.direct)));
        pieces.extend(run(self.a_landing_offset, self.a_landing_bytes, schedule.stages));
        pieces.extend(run(self.b_landing_offset, self.b_landing_bytes, schedule.stages));
        if schedule.column_tiles > 1 {
            pieces.push(self.tile_offset..self.shared_bytes);
        }
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// The emitted struct `config`.
    pub fn emit(&self, parts: &Parts, schedule: &Schedule) -> String {
        let product = &parts.product;
        let precision = match product.precision {
            DType::F16 => 0,
            DType::Tf32 => 1,
            _ => 2,
        };
        let numbers = [
            ("rows", product.walked_rows()),
            ("inner", product.inner),
            ("columns", product.columns),
            ("tile_rows", schedule.rows),
            ("tile_columns", schedule.columns),
            ("step", schedule.step),
            ("steps", self.steps),
            ("stages", schedule.stages),
            ("column_tiles", schedule.column_tiles),
            ("column_groups", self.column_groups),
            ("halo", self.halo),
            ("threads", schedule.threads()),
            ("warps_n", schedule.warps[1]),
            ("fragments_m", schedule.rows / schedule.warps[0] / 16),
            ("fragments_n", schedule.columns / schedule.warps[1] / 8),
            ("precision", precision),
            ("element_bytes", product.element_bytes()),
            ("a_pitch", self.a_pitch),
            ("b_pitch", self.b_pitch),
            ("tile_pitch", self.tile_pitch),
            ("a_offset", self.a_offset),
            ("a_bytes", self.a_bytes),
            ("b_offset", self.b_offset),
            ("b_bytes", self.b_bytes),
            ("a_landing_offset", self.a_landing_offset),
            ("a_landing_bytes", self.a_landing_bytes),
            ("b_landing_offset", self.b_landing_offset),
            ("b_landing_bytes", self.b_landing_bytes),
            ("tile_offset", self.tile_offset),
        ];
        let mut text = String::from("struct config {\n");
        for line in numbers.chunks(4) {
            let entries: Vec<String> = line.iter().map(|(name, value)| format!("{name} = {value}u")).collect();
            let _ = writeln!(text, "    static constexpr uint32 {};", entries.join(", "));
        }
        let _ = writeln!(text, "    static constexpr bool resident = {};\n}};\n", schedule.resident);
        text
    }
}
