//! What a compilation came to, in a few lines for people.

use hyenac::check::Comparison;
use hyenac::{Compilation, HyenaBlock, Mode};
use hyenac_ir::Binding;

use super::options::VariantName;
use super::session::Session;
use super::table::{WIDTH, bytes, micros};

/// Width of the names in front of [`field`]'s text.
const NAME_WIDTH: usize = 9;

/// A named line, wrapped under its own beginning.
pub fn field(name: &str, text: &str) -> String {
    let room = WIDTH as usize - NAME_WIDTH;
    let mut rows = vec![String::new()];
    for word in text.split_whitespace() {
        let row = rows.last().map_or(0, |row| row.chars().count());
        if row > 0 && row + 1 + word.chars().count() > room {
            rows.push(String::new());
        }
        if let Some(row) = rows.last_mut() {
            if !row.is_empty() {
                row.push(' ');
            }
            row.push_str(word);
        }
    }
    let name_of = |position| if position == 0 { name } else { "" };
    rows.iter().enumerate().map(|(position, row)| format!("{:<NAME_WIDTH$}{row}\n", name_of(position))).collect()
}

/// The block and the shape of its input.
pub fn block_field(block: &HyenaBlock, variant: VariantName, batch: usize, seq_len: usize, origin: &str) -> String {
    let config = block.config();
    let text = format!(
        "{batch} x {seq_len}, d_model {}, l_max {}, {} preset, {origin}",
        config.d_model,
        config.l_max,
        variant.name()
    );
    field("block", &text)
}

/// The device, and why it is the CPU.
pub fn device_field(session: &Session) -> String {
    let mut text = field("device", &session.device());
    if let Some(note) = &session.present().note {
        text += &field("", note);
    }
    text
}

/// How long compilation took, and for what it was.
pub fn compile_field(session: &Session, compilation: &Compilation, seconds: f64) -> String {
    let options = session.options();
    let fused = match options.fuse {
        hyenac::Fuse::All => "fused",
        hyenac::Fuse::None => "one kernel an op",
    };
    let text = format!(
        "{} for {}, {} precision, {fused}, {} weights",
        micros(seconds * 1e6),
        compilation.options.machine.name(),
        session.precision(),
        super::session::mode_name(compilation.options.mode)
    );
    field("compile", &text)
}

/// What a call does.
pub fn plan_field(compilation: &Compilation) -> String {
    let convolution = convolution(compilation);
    let text = match &compilation.plan {
        Some(plan) => format!(
            "{} launches a call, {} at bind, arena {} (largest live set {}), {convolution} convolution, predicted {}",
            plan.launches.len(),
            plan.setup.len(),
            bytes(plan.arena_bytes),
            bytes(plan.largest_live_bytes),
            micros(compilation.report.total_us)
        ),
        None => {
            let (call, all) = (call_regions(compilation).count(), compilation.report.regions.len());
            format!("{call} regions a call, {} at bind, {convolution} convolution", all - call)
        }
    };
    field("plan", &text)
}

/// How far a result is from a reference.
pub fn error_field(comparison: &Comparison, against: &str, bar: f64) -> String {
    let text = format!(
        "rel L2 {:.1e} against {against} (bar {bar:.0e}), max abs {:.1e}, {:.2}% within 2.4e-4 + 1e-5 |y|",
        comparison.rel_l2_err,
        comparison.max_abs_err,
        comparison.match_ratio * 100.0
    );
    field("error", &text)
}

/// The convolution that the plan uses, `direct` or `fft`.
pub fn convolution(compilation: &Compilation) -> String {
    match &compilation.report.convolution[..] {
        [] => "no".to_owned(),
        used => used.join(" and "),
    }
}

/// The regions that every call runs.
pub fn call_regions(compilation: &Compilation) -> impl Iterator<Item = &hyenac_passes::RegionReport> {
    let frozen = compilation.options.mode == Mode::Frozen;
    compilation.report.regions.iter().filter(move |region| !(frozen && region.binding == Binding::Weights))
}

/// Kernel launches of a call; on the CPU, regions.
pub fn launches(compilation: &Compilation) -> usize {
    match &compilation.plan {
        Some(plan) => plan.launches.len(),
        None => call_regions(compilation).count(),
    }
}

/// Lower bound of a call by bytes and flops, microseconds.
pub fn floor_us(compilation: &Compilation) -> f64 {
    call_regions(compilation).map(|region| region.floor_us).sum()
}

/// `passed` or `FAILED`.
pub fn verdict(passed: bool) -> &'static str {
    if passed { "passed" } else { "FAILED" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_wrap_under_their_beginning() {
        let text = field("device", &"word ".repeat(40));
        assert!(text.starts_with("device   word") && text.lines().count() > 1);
        assert!(text.lines().skip(1).all(|line| line.starts_with("         word")), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH as usize), "{text}");
    }
}
