//! One kernel: whole transforms in the shared memory of a block.
//!
//! A block takes `channels` channels of `batches` batches each and, where the filter is transformed too, its
//! transform of every channel once. The bins of the forward transform stay in their scrambled places; a thread
//! turns bins `k` and `N - k` into those of the real signals, multiplies, and turns them back.

use hyenac_ir::DType;

use super::emit::Writer;
use super::radix::Transform;
use super::recognise::Pattern;
use crate::device::Device;
use crate::family::{Lowered, Pointer, Refusal};

/// How a region is laid out over blocks.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub transform: Transform,
    /// Channels of a block.
    pub channels: usize,
    /// Batches of a block.
    pub batches: usize,
    pub threads: usize,
}

impl Form {
    /// Rows of the region in one block.
    pub fn signals(&self) -> usize {
        self.channels * self.batches
    }

    /// Transforms in shared memory.
    pub fn slots(&self, pattern: &Pattern) -> usize {
        self.signals() + if pattern.filter.is_some() { self.channels } else { 0 }
    }

    /// Dynamic shared memory of a block, bytes.
    pub fn shared_bytes(&self, pattern: &Pattern) -> usize {
        self.slots(pattern) * self.transform.row(1) * DType::C64.bytes()
    }

    /// Number of blocks.
    pub fn blocks(&self, pattern: &Pattern) -> usize {
        pattern.channels.div_ceil(self.channels) * pattern.batches.div_ceil(self.batches)
    }

    /// Whether a block fits on the device.
    pub fn fits(&self, pattern: &Pattern, device: &Device) -> bool {
        self.shared_bytes(pattern) <= device.shared_bytes_per_block as usize
            && self.blocks(pattern) <= i32::MAX as usize
    }

    /// Defines `channel` and `batch` of a slot. Past the last row: the last row's, or what `otherwise` says.
    fn place(&self, pattern: &Pattern, otherwise: Option<&str>) -> String {
        let (c, g) = (self.channels, self.batches);
        let groups = pattern.channels.div_ceil(c);
        let axis = |name: &str, index: String, extent: usize, ragged: bool| match otherwise {
            Some(statement) if ragged => {
                format!("const uint32 {name} = {index};\nif ({name} >= {extent}u) {statement};\n")
            }
            None if ragged => format!("const uint32 {name} = min({index}, {}u);\n", extent - 1),
            _ => format!("const uint32 {name} = {index};\n"),
        };
        axis(
            "channel",
            format!("blockIdx.x % {groups}u * {c}u + slot % {c}u"),
            pattern.channels,
            !pattern.channels.is_multiple_of(c),
        ) + &axis(
            "batch",
            format!("blockIdx.x / {groups}u * {g}u + slot / {c}u"),
            pattern.batches,
            !pattern.batches.is_multiple_of(g),
        )
    }

    /// The kernel.
    ///
    /// # Errors
    /// When an expression of the region has no scalar form, which recognition has ruled out.
    pub fn lower(&self, pattern: &Pattern) -> Result<Lowered, Refusal> {
        let transform = &self.transform;
        let points = transform.points;
        let (signals, slots) = (self.signals(), self.slots(pattern));
        let mut writer = Writer::new(transform, transform.row(1), slots, self.threads, false);
        let read = format!("{}const uint32 j = position;", self.place(pattern, None));
        if let Some(signal) = &pattern.signal {
            writer.input(pattern, signal, "signal_at", &read)?;
            let mut load = "signal_at";
            if let Some(filter) = &pattern.filter {
                writer.input(pattern, filter, "filter_at", &read)?;
                writer.lines(&format!(
                    "auto both_at = [&](uint32 slot, uint32 position) -> float2 {{\n    \
                     return slot < {signals}u ? signal_at(slot, position) : filter_at(slot - {signals}u, position);\n}};"
                ));
                load = "both_at";
            }
            writer.forward(slots, load, signal.length.div_ceil(2), None);
        }
        if let Some(inverse) = &pattern.inverse {
            let write = format!("{}const uint32 j = position;", self.place(pattern, Some("return")));
            writer.output(pattern, inverse.length, &write)?;
        }
        // Stored spectra are walked in the order of their bins, so that memory is read and written in runs; two
        // transforms of this kernel in the order of their places, so that shared memory is.
        if pattern.filter.is_some() {
            let first = transform.stages[0];
            let places = (first.radix / 2 + 1) * first.stride;
            let total = signals * places;
            writer.lines(&format!(
                "for (uint32 i = threadIdx.x; i < {total}u; i += THREADS) {{\n    \
                 const uint32 slot = i / {places}u, position = i % {places}u;\n    \
                 const uint32 bin = bin_at(position), mirror = POINTS - bin;\n    \
                 // Bins of one digit are the mirror of another digit's, or among themselves.\n    \
                 const uint32 digit = position / {}u;\n    \
                 if ((digit == 0 || 2 * digit == {}u) && bin > mirror) continue;",
                first.stride, first.radix
            ));
        } else {
            let bins = points / 2 + 1;
            let total = signals * bins;
            writer.lines(&format!(
                "for (uint32 i = threadIdx.x; i < {total}u; i += THREADS) {{\n    \
                 const uint32 slot = i / {bins}u, bin = i % {bins}u, mirror = POINTS - bin;\n    \
                 const uint32 position = position_of(bin);"
            ));
        }
        let place: String = self.place(pattern, Some("continue")).lines().map(|line| format!("    {line}\n")).collect();
        writer.lines(&place);
        writer.lines(
            "    const uint32 at_bin = slot * ROW + padded(position);\n    \
             const uint32 at_mirror = slot * ROW + padded(position_of(bin == 0 ? 0 : mirror));",
        );
        let outputs = [Pointer::Output(0)];
        let kernel = if let Some(inverse) = &pattern.inverse {
            writer.replace_spectrum(pattern, &format!("({signals}u + slot % {}u - slot) * ROW", self.channels))?;
            writer.lines("}\n__syncthreads();");
            writer.inverse(signals, None, "output", inverse.length.div_ceil(2));
            writer.kernel(pattern, "fft", self.blocks(pattern) as u32, &outputs)
        } else {
            writer.write_spectrum(pattern)?;
            writer.lines("}");
            writer.kernel(pattern, "fft", self.blocks(pattern) as u32, &outputs)
        };
        Ok(Lowered { kernels: vec![kernel], scratch: Vec::new() })
    }
}
