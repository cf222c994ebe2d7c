//! Several kernels: transforms that exceed a block's shared memory, in two passes through device memory.
//!
//! Point `j = j_1 N_2 + j_2` of `N = N_1 N_2`, bin `k = k_1 + N_1 k_2`. Columns: for tiles of neighbouring `j_2`,
//! transforms over `j_1`, times `exp(-2 pi i j_2 k_1 / N)`, kept as `[k_1][j_2]`. Rows: for pairs of rows `k_1` and
//! `N_1 - k_1`, transforms over `j_2`; the pair holds every bin together with its mirror, so that the step from the
//! complex transform to the real one, the product of spectra and the step back happen in shared memory. The
//! inverse is the same backwards, and a convolution turns around within the rows: no spectrum is stored.

use hyenac_ir::DType;

use super::emit::{End, Writer};
use super::radix::Transform;
use super::recognise::{Forward, Pattern};
use crate::device::Device;
use crate::family::{Kernel, Lowered, Pointer, Refusal};

/// How a region is laid out over kernels and blocks.
#[derive(Clone, Debug)]
pub(super) struct Form {
    /// Transform of a column, `N_1` points.
    pub column: Transform,
    /// Transform of a row, `N_2` points.
    pub row: Transform,
    /// Columns of a block.
    pub columns: usize,
    /// Pairs of rows of a block.
    pub pairs: usize,
    /// Threads of every block.
    pub threads: usize,
}

/// Sizes of the scratch buffers: transforms of the rows, transforms of the filters.
pub(super) fn scratch(pattern: &Pattern) -> Vec<u64> {
    let bytes = |rows: usize| (rows * pattern.points * DType::C64.bytes()) as u64;
    let mut scratch = vec![bytes(pattern.rows())];
    scratch.extend(pattern.filter.as_ref().map(|_| bytes(pattern.channels)));
    scratch
}

/// Number of kernels.
pub(super) fn launches(pattern: &Pattern) -> u32 {
    let columns = [pattern.signal.is_some(), pattern.filter.is_some(), pattern.inverse.is_some()];
    1 + columns.into_iter().map(u32::from).sum::<u32>()
}

impl Form {
    /// Blocks of one row of the region in the kernels over columns.
    pub fn column_tiles(&self) -> usize {
        self.row.points.div_ceil(self.columns)
    }

    /// Blocks of one row of the region in the kernel over rows: rows `0 ..= N_1 / 2` and their mirrors.
    pub fn row_tiles(&self) -> usize {
        (self.column.points / 2 + 1).div_ceil(self.pairs)
    }

    /// Dynamic shared memory of the kernels over columns, bytes.
    pub fn column_bytes(&self) -> usize {
        self.columns * self.column.row(self.columns) * DType::C64.bytes()
    }

    /// Dynamic shared memory of the kernel over rows, bytes.
    pub fn row_bytes(&self, pattern: &Pattern) -> usize {
        self.slots(pattern) * self.row.row(self.pairs) * DType::C64.bytes()
    }

    fn slots(&self, pattern: &Pattern) -> usize {
        self.pairs * if pattern.filter.is_some() { 4 } else { 2 }
    }

    /// Whether every block fits on the device.
    pub fn fits(&self, pattern: &Pattern, device: &Device) -> bool {
        let limit = device.shared_bytes_per_block as usize;
        let blocks = pattern.rows().saturating_mul(self.column_tiles().max(self.row_tiles()));
        self.column_bytes() <= limit && self.row_bytes(pattern) <= limit && blocks <= i32::MAX as usize
    }

    /// The kernels.
    ///
    /// # Errors
    /// When an expression of the region has no scalar form, which recognition has ruled out.
    pub fn lower(&self, pattern: &Pattern) -> Result<Lowered, Refusal> {
        let mut kernels = Vec::new();
        if let Some(signal) = &pattern.signal {
            kernels.push(self.columns_forward(pattern, signal, 0)?);
        }
        if let Some(filter) = &pattern.filter {
            kernels.push(self.columns_forward(pattern, filter, 1)?);
        }
        kernels.push(self.rows(pattern)?);
        if pattern.inverse.is_some() {
            kernels.push(self.columns_inverse(pattern)?);
        }
        Ok(Lowered { kernels, scratch: scratch(pattern) })
    }

    /// A writer for a kernel over columns, with `channel`, `batch`, `first` and `work` defined.
    fn column_writer(&self, pattern: &Pattern, scratch: usize) -> Writer<'_> {
        let row = self.column.row(self.columns);
        let mut writer = Writer::new(&self.column, row, self.columns, self.threads, true);
        let tiles = self.column_tiles();
        let batch = if scratch == 0 { format!("line / {}u", pattern.channels) } else { "0".to_owned() };
        writer.lines(&format!(
            "const uint32 line = blockIdx.x / {tiles}u, first = blockIdx.x % {tiles}u * {}u;\n\
             const uint32 channel = line % {}u, batch = {batch};\n\
             float2* const work = s{scratch} + (uint64)line * SPECTRUM;",
            self.columns, pattern.channels
        ));
        writer
    }

    /// C++ for the column of a slot, clamped to the last one.
    fn column_of_slot(&self) -> String {
        let columns = self.row.points;
        if columns.is_multiple_of(self.columns) {
            "first + slot".to_owned()
        } else {
            format!("min(first + slot, {}u)", columns - 1)
        }
    }

    /// A statement that leaves a slot past the last column alone.
    fn skip_slot(&self) -> String {
        let columns = self.row.points;
        if columns.is_multiple_of(self.columns) {
            String::new()
        } else {
            format!("if (first + slot >= {columns}u) return;\n")
        }
    }

    /// The lambda that multiplies by the roots of unity between columns and rows, at the stage of stride 1.
    fn rotation(&self) -> String {
        let radix = self.column.stages.last().map_or(1, |stage| stage.radix);
        format!(
            "auto rotation = [&](float2 (&v)[{radix}], uint32 slot, uint32 base, uint32) {{\n    \
             const uint32 column = {};\n    \
             turn<{radix}, {}>(v, column);\n    \
             const float2 w = root<SPECTRUM>(column * bin_at(base));\n\
             #pragma unroll\n    \
             for (int q = 0; q < {radix}; ++q) v[q] = complex_product(v[q], w);\n}};",
            self.column_of_slot(),
            radix * self.row.points
        )
    }

    /// C++ for the place of operand `q` of the stage of stride 1: its bin is the base's plus `q` times a constant.
    fn in_work(&self) -> String {
        let radix = self.column.stages.last().map_or(1, |stage| stage.radix);
        format!("work[(bin_at(base) + q * {}u) * {}u + column]", self.column.points / radix, self.row.points)
    }

    fn columns_forward(&self, pattern: &Pattern, forward: &Forward, scratch: usize) -> Result<Kernel, Refusal> {
        let mut writer = self.column_writer(pattern, scratch);
        let width = self.row.points;
        let filled = forward.length.div_ceil(2);
        let point = format!("position * {width}u + {}", self.column_of_slot());
        let (place, load) = if filled.is_multiple_of(width) {
            (format!("const uint32 j = {point};"), "input_at")
        } else {
            // The last row of points is filled in part.
            (format!("const uint32 j = min({point}, {}u);", filled - 1), "filled_at")
        };
        writer.input(pattern, forward, "input_at", &place)?;
        if !filled.is_multiple_of(width) {
            writer.lines(&format!(
                "auto filled_at = [&](uint32 slot, uint32 position) -> float2 {{\n    \
                 const float2 value = input_at(slot, position);\n    \
                 return {point} < {filled}u ? value : make_float2(0.0f, 0.0f);\n}};"
            ));
        }
        writer.lines(&self.rotation());
        writer.lines(&format!(
            "auto store = [&](uint32 slot, uint32 base, uint32 q, float2 value) {{\n{}    \
             const uint32 column = first + slot;\n    {} = value;\n}};",
            indented(&self.skip_slot()),
            self.in_work()
        ));
        let end = End { functor: "store", rotation: Some("rotation") };
        writer.forward(self.columns, load, filled.div_ceil(width), Some(end));
        let (stem, rows) =
            if scratch == 0 { ("fft_columns", pattern.rows()) } else { ("fft_filter_columns", pattern.channels) };
        Ok(writer.kernel(pattern, stem, (rows * self.column_tiles()) as u32, &[Pointer::Scratch(scratch)]))
    }

    fn columns_inverse(&self, pattern: &Pattern) -> Result<Kernel, Refusal> {
        let mut writer = self.column_writer(pattern, 0);
        let width = self.row.points;
        let length = pattern.inverse.as_ref().map_or(1, |inverse| inverse.length);
        let wanted = length.div_ceil(2);
        writer.lines(&self.rotation());
        writer.lines(&format!(
            "auto load = [&](uint32 slot, uint32 base, uint32 q) -> float2 {{\n    \
             const uint32 column = {};\n    return {};\n}};",
            self.column_of_slot(),
            self.in_work()
        ));
        let mut place = format!("{}const uint32 j = position * {width}u + first + slot;", self.skip_slot());
        if !wanted.is_multiple_of(width) {
            place.push_str(&format!("\nif (j >= {wanted}u) return;"));
        }
        writer.output(pattern, length, &place)?;
        let end = End { functor: "load", rotation: Some("rotation") };
        writer.inverse(self.columns, Some(end), "output", wanted.div_ceil(width));
        let blocks = (pattern.rows() * self.column_tiles()) as u32;
        Ok(writer.kernel(pattern, "fft_inverse_columns", blocks, &[Pointer::Output(0), Pointer::Scratch(0)]))
    }

    fn rows(&self, pattern: &Pattern) -> Result<Kernel, Refusal> {
        let (tall, width, pairs) = (self.column.points, self.row.points, self.pairs);
        let slots = self.slots(pattern);
        let mut writer = Writer::new(&self.row, self.row.row(pairs), slots, self.threads, false);
        let tiles = self.row_tiles();
        writer.lines(&format!(
            "const uint32 line = blockIdx.x / {tiles}u, first = blockIdx.x % {tiles}u * {pairs}u;\n\
             const uint32 channel = line % {channels}u, batch = line / {channels}u;\n\
             float2* const work = s0 + (uint64)line * SPECTRUM;\n\
             // The rows of a slot: row k of a pair, then its mirror; past the middle row, that again.\n\
             auto row_of = [&](uint32 slot) -> uint32 {{\n    \
             const uint32 row = min(first + slot % {pairs}u, {}u);\n    \
             return slot / {pairs}u % 2 == 0 || row == 0 ? row : {tall}u - row;\n}};",
            tall / 2,
            channels = pattern.channels
        ));
        if pattern.signal.is_some() {
            let mut load = format!(
                "auto load = [&](uint32 slot, uint32 position) -> float2 {{\n    \
                 const uint32 at = row_of(slot) * {width}u + position;\n    "
            );
            if pattern.filter.is_some() {
                load.push_str(&format!("return slot < {}u ? work[at] : filters[at];\n}};", 2 * pairs));
                writer.lines("const float2* const filters = s1 + (uint64)channel * SPECTRUM;");
            } else {
                load.push_str("return work[at];\n};");
            }
            writer.lines(&load);
            writer.forward(slots, "load", width, None);
        }
        writer.lines(&format!(
            "for (uint32 i = threadIdx.x; i < {}u; i += THREADS) {{\n    \
             const uint32 slot = i % {pairs}u, position = i / {pairs}u, row = first + slot;\n    \
             if (row > {}u) continue;\n    \
             const uint32 column = bin_at(position);\n    \
             const uint32 bin = row + {tall}u * column, mirror = SPECTRUM - bin;\n    \
             // Rows 0 and N_1 / 2 are their own mirrors.\n    \
             const bool alone = row == 0 || 2 * row == {tall}u;\n    \
             if (alone && bin > mirror) continue;\n    \
             const uint32 opposite = row > 0 ? {width}u - 1 - column : column > 0 ? {width}u - column : 0;\n    \
             const uint32 at_bin = slot * ROW + padded(position);\n    \
             const uint32 at_mirror = (alone ? slot : slot + {pairs}u) * ROW + padded(position_of(opposite));",
            pairs * width,
            tall / 2
        ));
        let blocks = (pattern.rows() * tiles) as u32;
        if pattern.inverse.is_none() {
            writer.write_spectrum(pattern)?;
            writer.lines("}");
            return Ok(writer.kernel(pattern, "fft_rows", blocks, &[Pointer::Output(0), Pointer::Scratch(0)]));
        }
        writer.replace_spectrum(pattern, &format!("{}u * ROW", 2 * pairs))?;
        writer.lines("}\n__syncthreads();");
        writer.lines(&format!(
            "auto store = [&](uint32 slot, uint32 position, float2 value) {{\n    \
             const uint32 row = first + slot % {pairs}u;\n    \
             const bool alone = row == 0 || 2 * row == {tall}u;\n    \
             if (row > {}u || (alone && slot >= {pairs}u)) return;\n    \
             work[row_of(slot) * {width}u + position] = value;\n}};",
            tall / 2
        ));
        writer.inverse(2 * pairs, None, "store", width);
        let scratch: Vec<Pointer> = (0..scratch(pattern).len()).map(Pointer::Scratch).collect();
        Ok(writer.kernel(pattern, "fft_rows", blocks, &scratch))
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
