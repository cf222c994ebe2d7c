//! `hyenac check --suite`: every shape, preset, distribution and binding, fused and unfused.

use hyenac::check::Comparison;
use hyenac::{BlockConfig, Fuse, Mode};

use super::Outcome;
use super::console::Console;
use super::failure::Failure;
use super::options::{InputsName, VariantName};
use super::replays::{Replays, replay};
use super::session::{Session, mode_name};
use super::summary::{device_field, launches, verdict};
use super::table::{Align, table};
use super::workload::Workload;
use crate::bench::{Case, Suite};

/// The least fraction of elements within the element tolerance, with the benchmark's inputs.
const MATCH_BAR: f64 = 0.99;
/// Presets, distributions, fusions and bindings of each shape.
const COMBINATIONS: usize = 16;

/// What the block of a suite has beside its preset.
pub struct SuiteBlock {
    /// Longest sequence of the filter.
    pub l_max: Option<usize>,
    /// Epsilon of the layer norms.
    pub eps: Option<f64>,
    /// Shift of the decay.
    pub shift: Option<f64>,
    /// Seed of weights and inputs.
    pub seed: u64,
}

impl SuiteBlock {
    fn config(&self, preset: BlockConfig) -> BlockConfig {
        BlockConfig {
            l_max: self.l_max.unwrap_or(preset.l_max),
            layer_norm_eps: self.eps.unwrap_or(preset.layer_norm_eps),
            shift: self.shift.unwrap_or(preset.shift),
            ..preset
        }
    }
}

/// One line of the result.
struct Row {
    case: Case,
    variant: VariantName,
    inputs: InputsName,
    mode: Mode,
    fuse: Fuse,
    launches: usize,
    comparison: Comparison,
    replays: Option<Replays>,
    passed: bool,
}

/// Checks every combination; a failure of one does not keep the others from being checked.
pub fn check_suite(
    session: &Session,
    suite: &Suite,
    block: &SuiteBlock,
    replays: usize,
    console: &Console,
) -> Result<Outcome, Failure> {
    let mut progress = console.progress("check", suite.cases.len() * COMBINATIONS * (1 + replays));
    let mut rows = Vec::new();
    for &case in &suite.cases {
        for variant in [VariantName::Benchmark, VariantName::Hyenadna] {
            for inputs in [InputsName::Trained, InputsName::Benchmark] {
                let config = block.config(variant.preset());
                let workload = Workload::seeded(inputs, &config, case.batch, case.seq_len, block.seed)?;
                progress.message(format!("{case} {} {}: float64", variant.name(), inputs.name()));
                let reference = workload.block.reference(&workload.hidden_states, case.batch, case.seq_len)?;
                for fuse in [Fuse::All, Fuse::None] {
                    let session = session.with_fuse(fuse);
                    for mode in [Mode::Live, Mode::Frozen] {
                        progress.message(format!("{case} {} {} {}", variant.name(), inputs.name(), mode_name(mode)));
                        let (compilation, _) = session.compile(&config, case.batch, case.seq_len, mode)?;
                        let mut executable = session.bind(&compilation, &workload.block)?;
                        let output = executable.run(&workload.hidden_states)?;
                        progress.step();
                        let comparison = Comparison::of(&output, &reference);
                        let replays = match replays {
                            0 => None,
                            count => Some(replay(&mut executable, &workload.hidden_states, count, &mut progress)?),
                        };
                        let matches = inputs == InputsName::Trained || comparison.match_ratio >= MATCH_BAR;
                        let steady = replays.as_ref().is_none_or(Replays::passed);
                        let passed = comparison.within(session.bar()) && matches && steady;
                        let launches = launches(&compilation);
                        rows.push(Row { case, variant, inputs, mode, fuse, launches, comparison, replays, passed });
                    }
                }
            }
        }
    }
    drop(progress);
    let passed = rows.iter().filter(|row| row.passed).count();
    let mut text = device_field(session);
    text += &format!("\n{}\n", rows_table(&rows));
    text += &format!(
        "{passed} of {} passed: relative L2 error at most {:.0e} ({}), with the benchmark's inputs also\n\
         at least {:.0}% of the elements within 2.4e-4 + 1e-5 |y|",
        rows.len(),
        session.bar(),
        session.precision(),
        MATCH_BAR * 100.0
    );
    for row in &rows {
        if let Some(replays) = row.replays.as_ref().filter(|replays| !replays.passed()) {
            text += &format!("\n{} {} {}: {}", row.case, row.variant.name(), mode_name(row.mode), replays.describe());
        }
    }
    if replays > 0 && rows.iter().all(|row| row.replays.as_ref().is_none_or(Replays::passed)) {
        text += &format!("\n{replays} replays of each with changing pointers: bit-identical, no memory lost");
    }
    console.print(&text)?;
    Ok(Outcome::of(passed == rows.len()))
}

fn rows_table(rows: &[Row]) -> String {
    let header = [
        ("B x L", Align::Left),
        ("preset", Align::Left),
        ("inputs", Align::Left),
        ("weights", Align::Left),
        ("fuse", Align::Left),
        ("launches", Align::Right),
        ("rel L2", Align::Right),
        ("max abs", Align::Right),
        ("match", Align::Right),
        ("", Align::Left),
    ];
    let cells = rows.iter().map(|row| {
        vec![
            row.case.to_string(),
            row.variant.name().to_owned(),
            row.inputs.name().to_owned(),
            mode_name(row.mode).to_owned(),
            match row.fuse {
                Fuse::All => "all",
                Fuse::None => "none",
            }
            .to_owned(),
            row.launches.to_string(),
            format!("{:.1e}", row.comparison.rel_l2_err),
            format!("{:.1e}", row.comparison.max_abs_err),
            format!("{:.2}%", row.comparison.match_ratio * 100.0),
            verdict(row.passed).to_owned(),
        ]
    });
    table(&header, cells)
}
