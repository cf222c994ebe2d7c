//! Text that every kernel of the family shares: constants, butterflies, stages, reads and writes of real rows.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::butterfly::Butterfly;
use super::radix::Transform;
use super::recognise::{Forward, Pattern};
use crate::family::{Kernel, Pointer, Refusal};
use crate::plan::KernelSource;
use crate::source::{kernel_name, parameter_list, translation_unit};

const DEVICE_CODE: &str = include_str!("fft.cuh");

/// A kernel under construction.
pub(super) struct Writer<'a> {
    pub transform: &'a Transform,
    /// Complex numbers from one transform to the next in shared memory.
    pub row: usize,
    /// Transforms in shared memory.
    pub rows: usize,
    pub threads: usize,
    /// Whether neighbouring lanes work on neighbouring transforms.
    pub together: bool,
    text: String,
    butterflies: BTreeSet<(usize, usize)>,
}

/// What stands in place of shared memory at one end of a transform.
pub(super) struct End<'a> {
    /// C++ of the functor.
    pub functor: &'a str,
    /// C++ of what is done to a butterfly there, beyond the roots of unity between stages.
    pub rotation: Option<&'a str>,
}

impl<'a> Writer<'a> {
    /// A kernel of `rows` transforms in shared memory, each `row` complex numbers from the next.
    pub fn new(transform: &'a Transform, row: usize, rows: usize, threads: usize, together: bool) -> Writer<'a> {
        Writer { transform, row, rows, threads, together, text: String::new(), butterflies: BTreeSet::new() }
    }

    /// Appends lines of the kernel's body, indented by one level.
    pub fn lines(&mut self, text: &str) {
        for line in text.trim_matches('\n').lines() {
            if line.is_empty() {
                self.text.push('\n');
            } else {
                let _ = writeln!(self.text, "    {line}");
            }
        }
    }

    /// Forward transforms of rows `0 .. rows`. The first stage reads through `load` (row, position) the positions
    /// below `filled`, the others are zero; the last writes to `store`, or leaves the bins in shared memory.
    pub fn forward(&mut self, rows: usize, load: &str, filled: usize, store: Option<End>) {
        let stages = &self.transform.stages;
        for (index, stage) in stages.iter().enumerate() {
            let (radix, stride) = (stage.radix, stage.stride);
            let shared = format!("Shared<{radix}, {stride}>{{shared}}");
            let occupied = if index == 0 { filled.div_ceil(stride).min(radix) } else { radix };
            self.butterflies.insert((radix, occupied));
            let from = if index == 0 { format!("source<{stride}, {filled}>({load})") } else { shared.clone() };
            let end = store.as_ref().filter(|_| index + 1 == stages.len());
            let to = end.map_or(shared, |end| end.functor.to_owned());
            let turn = format!("Turn<{radix}, {stride}>{{}}");
            let after = end.and_then(|end| end.rotation).unwrap_or(&turn);
            let _ = writeln!(
                self.text,
                "    stage<{radix}, {occupied}, {stride}, {rows}>({from}, Leave{{}}, {after}, {to});"
            );
            if end.is_none() {
                self.text.push_str("    __syncthreads();\n");
            }
        }
    }

    /// Inverse transforms of rows `0 .. rows`, parts exchanged. The first stage reads from `load` or finds the bins
    /// in shared memory; the last writes through `store` (row, position, value) the positions below `wanted`.
    pub fn inverse(&mut self, rows: usize, load: Option<End>, store: &str, wanted: usize) {
        let stages = &self.transform.stages;
        for (index, stage) in stages.iter().enumerate().rev() {
            let (radix, stride) = (stage.radix, stage.stride);
            let shared = format!("Shared<{radix}, {stride}>{{shared}}");
            self.butterflies.insert((radix, radix));
            let end = load.as_ref().filter(|_| index + 1 == stages.len());
            let from = end.map_or(shared.clone(), |end| end.functor.to_owned());
            let turn = format!("Turn<{radix}, {stride}>{{}}");
            let before = end.and_then(|end| end.rotation).unwrap_or(&turn);
            let to = if index == 0 { format!("destination<{stride}, {wanted}>({store})") } else { shared };
            let _ = writeln!(
                self.text,
                "    stage<{radix}, {radix}, {stride}, {rows}>({from}, {before}, Leave{{}}, {to});"
            );
            if index > 0 {
                self.text.push_str("    __syncthreads();\n");
            }
        }
    }

    /// A lambda `name(slot, position)` that reads complex point `j` of a row, entries `2 j` and `2 j + 1`.
    /// `place` defines `j`, `channel` and `batch`; a position is asked for only below half the length, rounded up.
    pub fn input(&mut self, pattern: &Pattern, forward: &Forward, name: &str, place: &str) -> Result<(), Refusal> {
        let code = pattern.input_code(forward, 2)?;
        let length = forward.length;
        let _ = writeln!(self.text, "    auto {name} = [&](uint32 slot, uint32 position) -> float2 {{");
        self.nested(place);
        self.nested(&entries(length));
        self.text.push_str(&code.statements);
        let (even, odd) = (&code.elements[0], &code.elements[1]);
        let odd = if length % 2 == 1 { format!("2 * j + 1 < {length}u ? {odd} : 0.0f") } else { odd.clone() };
        let _ = writeln!(self.text, "        return make_float2({even}, {odd});\n    }};");
        Ok(())
    }

    /// A lambda `output(slot, position, value)` that writes entries `2 j` and `2 j + 1` of a row. `place` defines
    /// `j`, `channel` and `batch`, or returns where nothing is to be written.
    pub fn output(&mut self, pattern: &Pattern, length: usize, place: &str) -> Result<(), Refusal> {
        let (code, _) = pattern.output_code(2)?;
        self.text.push_str("    auto output = [&](uint32 slot, uint32 position, float2 value) {\n");
        self.nested(place);
        self.nested(&entries(length));
        self.text.push_str("        const float y0 = value.y, y1 = value.x;\n");
        self.text.push_str(&code.statements);
        // The second entry of a pair may lie past an odd length.
        for (which, element) in code.elements.iter().enumerate() {
            let guarded = which == 1 && length % 2 == 1;
            let guard = if guarded { format!("if (2 * j + 1 < {length}u) ") } else { String::new() };
            self.nested(&format!("{guard}{element}"));
        }
        self.text.push_str("    };\n");
        Ok(())
    }

    fn nested(&mut self, text: &str) {
        for line in text.lines() {
            let _ = writeln!(self.text, "        {line}");
        }
    }

    /// The loop body from two bins of the transforms in shared memory to two bins of the output: `at_bin` and
    /// `at_mirror` are defined.
    pub fn write_spectrum(&mut self, pattern: &Pattern) -> Result<(), Refusal> {
        let (code, _) = pattern.output_code(2)?;
        self.nested(ROOT);
        self.nested("const Bins signal = real_bins(shared[at_bin], shared[at_mirror], w);");
        self.text.push_str(&code.statements);
        for element in &code.elements {
            self.nested(element);
        }
        Ok(())
    }

    /// The loop body that replaces bins of the signal's transform by those of what is transformed back. `filter` is
    /// C++ for the distance in shared memory from the signal's row to its filter's.
    pub fn replace_spectrum(&mut self, pattern: &Pattern, filter: &str) -> Result<(), Refusal> {
        let code = pattern.spectrum_code(2)?;
        self.nested(ROOT);
        if pattern.signal.is_some() {
            self.nested("const Bins signal = real_bins(shared[at_bin], shared[at_mirror], w);");
        }
        if pattern.filter.is_some() {
            self.nested(&format!("const uint32 to_filter = {filter};"));
            self.nested("const Bins filter = real_bins(shared[at_bin + to_filter], shared[at_mirror + to_filter], w);");
        }
        self.text.push_str(&code.statements);
        let scale = 1.0 / (2.0 * pattern.points as f64);
        self.nested(&format!(
            "const Bins z = complex_bins({}, {}, w, {:?}f, bin == 0);\n\
             shared[at_bin] = z.bin;\n\
             shared[at_mirror] = z.mirror;",
            code.elements[0], code.elements[1], scale as f32
        ));
        Ok(())
    }

    /// The finished kernel.
    pub fn kernel(self, pattern: &Pattern, stem: &str, blocks: u32, outputs: &[Pointer]) -> Kernel {
        let Writer { transform, row, rows, threads, together, text, butterflies } = self;
        let body = pattern.body;
        // Only what this kernel reads, so that launches wait for no other.
        let mut pointers: Vec<Pointer> = (0..body.parameters().len())
            .filter(|position| text.contains(&format!("(p{position} + ")))
            .map(Pointer::Operand)
            .collect();
        pointers.extend(outputs);
        let name = kernel_name(stem, body);
        let mut constants = format!(
            "constexpr uint32 SPECTRUM = {}u, POINTS = {}u, ROW = {row}u, SKEW = {}u, THREADS = {threads}u;\n\
             constexpr bool TOGETHER = {together};\n",
            pattern.points, transform.points, transform.skew
        );
        constants.push_str(&transform.digit_functions());
        let programs: String =
            butterflies.iter().map(|&(radix, filled)| Butterfly::new(radix, filled).emit()).collect();
        let kernel = format!(
            "extern \"C\" __global__ void __launch_bounds__({threads}) {name}({}) {{\n    \
             extern __shared__ float2 shared[];\n{text}}}\n",
            parameter_list(body, &pointers)
        );
        Kernel {
            source: KernelSource { source: translation_unit(&[&constants, DEVICE_CODE, &programs, &kernel]), name },
            grid: [blocks, 1, 1],
            block: [threads as u32, 1, 1],
            shared_bytes: (rows * row * 8) as u32,
            pointers,
            late: None,
            calls_next: false,
        }
    }
}

const ROOT: &str = "const float2 w = root<2 * SPECTRUM>(bin);";

/// Defines the entries of complex point `j`; the second stays within an odd length.
fn entries(length: usize) -> String {
    if length % 2 == 1 {
        format!("const uint32 t0 = 2 * j, t1 = 2 * j + 1 < {length}u ? 2 * j + 1 : {}u;", length - 1)
    } else {
        "const uint32 t0 = 2 * j, t1 = 2 * j + 1;".to_owned()
    }
}
