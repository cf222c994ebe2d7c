//! `hyenac check --suite`: every shape, preset, distribution and binding, fused and unfused.

use hyenac::check::Comparison;
use hyenac::{BlockConfig, Fuse, Mode, Positions};

use super::Outcome;
use super::console::{Console, Progress};
use super::failure::Failure;
use super::options::{InputsName, VariantName};
use super::replays::{Replays, replay};
use super::session::{Session, mode_name};
use super::summary::{device_field, field, launches, verdict};
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

/// One combination.
#[derive(Clone, Copy)]
struct Combination {
    case: Case,
    variant: VariantName,
    inputs: InputsName,
    mode: Mode,
    fuse: Fuse,
}

/// What checking one combination showed.
struct Checked {
    launches: usize,
    comparison: Comparison,
    replays: Option<Replays>,
    passed: bool,
}

/// A combination, and what came of it.
type Row = (Combination, Result<Checked, String>);

/// Checks every combination; a failure of one does not keep the others from being checked.
pub fn check_suite(
    session: &Session,
    suite: &Suite,
    block: &SuiteBlock,
    replays: usize,
    console: &Console,
) -> Result<Outcome, Failure> {
    let mut progress = console.progress("check", suite.cases.len() * COMBINATIONS * (1 + replays));
    let mut rows: Vec<Row> = Vec::new();
    for &case in &suite.cases {
        for variant in [VariantName::Benchmark, VariantName::Hyenadna] {
            let config = block.config(variant.preset());
            if config.positions == Positions::Max && case.seq_len > config.l_max {
                console.note(&format!(
                    "{case}: left out for {}, whose filter ends at {}",
                    variant.name(),
                    config.l_max
                ));
                continue;
            }
            for inputs in [InputsName::Trained, InputsName::Benchmark] {
                progress.message(format!("{case} {} {}: float64", variant.name(), inputs.name()));
                let workload = Workload::seeded(inputs, &config, case.batch, case.seq_len, block.seed)?;
                let reference = workload.block.reference(&workload.hidden_states, case.batch, case.seq_len)?;
                for fuse in [Fuse::All, Fuse::None] {
                    let session = session.with_fuse(fuse);
                    for mode in [Mode::Live, Mode::Frozen] {
                        progress.message(format!("{case} {} {} {}", variant.name(), inputs.name(), mode_name(mode)));
                        let combination = Combination { case, variant, inputs, mode, fuse };
                        let checked = check(&session, &workload, &reference, combination, replays, &mut progress);
                        rows.push((combination, checked.map_err(|failure| failure.to_string())));
                    }
                }
            }
        }
    }
    drop(progress);
    let passed = rows.iter().filter(|(_, checked)| checked.as_ref().is_ok_and(|checked| checked.passed)).count();
    let text = device_field(session) + &report(&rows, passed, session.bar(), session.precision(), replays);
    console.print(&text)?;
    Ok(Outcome::of(passed == rows.len()))
}

fn check(
    session: &Session,
    workload: &Workload,
    reference: &[f64],
    combination: Combination,
    replays: usize,
    progress: &mut Progress,
) -> Result<Checked, Failure> {
    let Workload { block, batch, seq_len, hidden_states, .. } = workload;
    let (compilation, _) = session.compile(block.config(), *batch, *seq_len, combination.mode)?;
    let mut executable = session.bind(&compilation, block)?;
    let comparison = Comparison::of(&executable.run(hidden_states)?, reference);
    progress.step();
    let replays = match replays {
        0 => None,
        count => Some(replay(&mut executable, hidden_states, count, progress)?),
    };
    let matches = combination.inputs == InputsName::Trained || comparison.match_ratio >= MATCH_BAR;
    let steady = replays.as_ref().is_none_or(Replays::passed);
    let passed = comparison.within(session.bar()) && matches && steady;
    Ok(Checked { launches: launches(&compilation), comparison, replays, passed })
}

fn report(rows: &[Row], passed: usize, bar: f64, precision: &str, replays: usize) -> String {
    let mut text = format!("\n{}\n", rows_table(rows));
    text += &format!(
        "{passed} of {} passed: relative L2 error at most {bar:.0e} ({precision}), with the benchmark's inputs also\n\
         at least {:.0}% of the elements within 2.4e-4 + 1e-5 |y|",
        rows.len(),
        MATCH_BAR * 100.0
    );
    let mut all_steady = replays > 0;
    for (Combination { case, variant, mode, fuse, .. }, checked) in rows {
        let what = match checked {
            Err(error) => error.clone(),
            Ok(checked) => match &checked.replays {
                Some(replays) if !replays.passed() => replays.describe(),
                _ => continue,
            },
        };
        all_steady = false;
        let name = format!("{case} {} {} {}: ", variant.name(), mode_name(*mode), fuse_name(*fuse));
        text += &format!("\n{}", field("FAILED", &(name + &what)).trim_end());
    }
    if all_steady {
        text += &format!("\n{replays} replays of each with changing pointers: bit-identical, no memory lost");
    }
    text
}

fn fuse_name(fuse: Fuse) -> &'static str {
    match fuse {
        Fuse::All => "all",
        Fuse::None => "none",
    }
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
    let cells = rows.iter().map(|(combination, checked)| {
        let number = |show: &dyn Fn(&Checked) -> String| checked.as_ref().map_or("-".to_owned(), show);
        vec![
            combination.case.to_string(),
            combination.variant.name().to_owned(),
            combination.inputs.name().to_owned(),
            mode_name(combination.mode).to_owned(),
            fuse_name(combination.fuse).to_owned(),
            number(&|checked| checked.launches.to_string()),
            number(&|checked| format!("{:.1e}", checked.comparison.rel_l2_err)),
            number(&|checked| format!("{:.1e}", checked.comparison.max_abs_err)),
            number(&|checked| format!("{:.2}%", checked.comparison.match_ratio * 100.0)),
            verdict(checked.as_ref().is_ok_and(|checked| checked.passed)).to_owned(),
        ]
    });
    table(&header, cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(found: f32, replays: Option<Replays>) -> Checked {
        let passed = found == 1.0 && replays.as_ref().is_none_or(Replays::passed);
        Checked { launches: 12, comparison: Comparison::of(&[found], &[1.0]), replays, passed }
    }

    #[test]
    fn every_failure_is_listed_with_its_reason() {
        let combination = Combination {
            case: Case { batch: 32, seq_len: 1_000_000 },
            variant: VariantName::Hyenadna,
            inputs: InputsName::Benchmark,
            mode: Mode::Frozen,
            fuse: Fuse::None,
        };
        let steady = Replays { count: 10, different: 0, memory_change: Some(0) };
        let leaking = Replays { memory_change: Some(-4096), ..steady.clone() };
        let unsteady = Replays { different: 3, ..steady.clone() };
        let rows: Vec<Row> = vec![
            (combination, Ok(checked(1.0, Some(steady)))),
            (combination, Ok(checked(f32::NAN, None))),
            (combination, Ok(checked(1.0, Some(leaking)))),
            (combination, Ok(checked(1.0, Some(unsteady)))),
            (combination, Err("no kernel for it".to_owned())),
        ];
        let text = report(&rows, 1, 1e-3, "mixed", 10);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        for part in ["1 of 5 passed", "inf", "changed by -4096 bytes", "3 DIFFERENT", "no kernel for it"] {
            assert!(text.contains(part), "`{part}` is missing in:\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("32x1000000") && line.ends_with("FAILED")).count(), 4);
        assert!(!text.contains("bit-identical, no memory lost"), "{text}");
        assert!(report(&rows[..1], 1, 1e-3, "mixed", 10).contains("bit-identical, no memory lost"));
    }
}
