//! What measurements of schedules say: the table, where the model's choice was not the fastest, and database entries.

use hyenac::Device;
use hyenac_ir::Type;
use hyenac_kernels::{Candidate, TuningEntry, lower_region, source_hash};
use serde_json::Value;

use super::collect::{Regions, Tuned};
use super::queue::Outcome;
use crate::cli::{Align, short_micros, table};

/// A time that is within this part of another one is not called faster: medians vary by about as much.
const NOTABLE: f64 = 0.02;

/// What all measurements came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Candidates that have a time, and how many of those were known before.
    pub timed: usize,
    /// Of those, how many were known before.
    pub known: usize,
    /// Candidates that did not compile or run.
    pub failed: usize,
    /// Candidates that the budget left out.
    pub left: usize,
    /// Regions with a time of the model's choice and of another candidate.
    pub judged: usize,
    /// Of those, how many have a notably faster candidate than the model's choice.
    pub misjudged: usize,
    /// What the model's choices lose in those regions, microseconds in all.
    pub lost_us: f64,
}

/// Where the model's choice of a region stands among the times that there are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Verdict {
    /// The fastest candidate.
    fastest: usize,
    /// What the model's choice, which is candidate 0, takes longer, microseconds.
    loses_us: f64,
    /// Whether that is more than measurements vary.
    notable: bool,
}

/// The verdict on a region; none without a time of the model's choice, or with no other.
fn verdict(outcomes: &[Outcome], launch_us: f64) -> Option<Verdict> {
    let choice = outcomes.first()?.time_us()?;
    let times = || outcomes.iter().enumerate().filter_map(|(index, outcome)| Some((index, outcome.time_us()?)));
    let (fastest, best) = times().min_by(|a, b| a.1.total_cmp(&b.1)).filter(|_| times().count() > 1)?;
    let loses_us = choice - best;
    Some(Verdict { fastest, loses_us, notable: loses_us > NOTABLE * (choice + launch_us) })
}

/// Counts outcomes and verdicts.
pub fn summary(outcomes: &[Vec<Outcome>], device: &Device) -> Summary {
    let mut summary = Summary::default();
    for outcome in outcomes.iter().flatten() {
        match outcome {
            Outcome::Measured(_) => summary.timed += 1,
            Outcome::Known(_) => {
                summary.timed += 1;
                summary.known += 1;
            }
            Outcome::Failed(_) => summary.failed += 1,
            Outcome::NotMeasured => summary.left += 1,
        }
    }
    for verdict in outcomes.iter().filter_map(|outcomes| verdict(outcomes, device.launch_us)) {
        summary.judged += 1;
        if verdict.notable {
            summary.misjudged += 1;
            summary.lost_us += verdict.loses_us;
        }
    }
    summary
}

/// A table for each region: its schedules as predicted and as measured, both with the boundary between kernels.
pub fn tables(regions: &Regions, outcomes: &[Vec<Outcome>], device: &Device) -> String {
    let header = [
        ("", Align::Left),
        ("schedule", Align::Left),
        ("predicted", Align::Right),
        ("measured", Align::Right),
        ("ratio", Align::Right),
    ];
    let mut text = String::new();
    for (number, (tuned, outcomes)) in regions.list.iter().zip(outcomes).enumerate() {
        let verdict = verdict(outcomes, device.launch_us);
        let rows = tuned.candidates.iter().zip(outcomes).enumerate().map(|(index, (candidate, outcome))| {
            let mark = match verdict {
                Some(verdict) if verdict.fastest == index => "fastest",
                _ if index == 0 => "model",
                _ => "",
            };
            let (measured, ratio) = match outcome.time_us() {
                Some(net_us) => {
                    let time = net_us + device.launch_us;
                    (short_micros(time), format!("{:.2}", time / candidate.time_us))
                }
                None if matches!(outcome, Outcome::Failed(_)) => ("failed".to_owned(), String::new()),
                None => ("-".to_owned(), String::new()),
            };
            vec![mark.to_owned(), readable(&candidate.schedule), short_micros(candidate.time_us), measured, ratio]
        });
        let description = describe(tuned);
        text += &format!("\n{}\n{}", wrapped(&format!("region {}: {description}", number + 1)), table(&header, rows));
        if let Some(Verdict { loses_us, notable: true, .. }) = verdict {
            text += &format!("the model's choice is not the fastest, it loses {loses_us:.2} us\n");
        }
        for (candidate, outcome) in tuned.candidates.iter().zip(outcomes) {
            if let Outcome::Failed(why) = outcome {
                text += &wrapped(&format!("failed: {}: {why}", readable(&candidate.schedule)));
                text += "\n";
            }
        }
    }
    text
}

/// Entries of what was measured.
pub fn entries(regions: &Regions, outcomes: &[Vec<Outcome>], device: &Device) -> Vec<TuningEntry> {
    let mut entries = Vec::new();
    for (tuned, outcomes) in regions.list.iter().zip(outcomes) {
        for (candidate, outcome) in tuned.candidates.iter().zip(outcomes) {
            let Outcome::Measured(time_us) = outcome else { continue };
            let mut region = tuned.region.clone();
            region.schedule.clone_from(&candidate.schedule);
            // It was lowered to be measured.
            if let Ok((_, lowered)) = lower_region(&region, device) {
                entries.push(entry(tuned, candidate, source_hash(&lowered), *time_us));
            }
        }
    }
    entries
}

fn entry(tuned: &Tuned, candidate: &Candidate, source: String, time_us: f64) -> TuningEntry {
    let texts = |types: Vec<&Type>| types.iter().map(ToString::to_string).collect();
    TuningEntry {
        region: tuned.key.clone(),
        computes: tuned.region.describe(),
        operands: texts(tuned.operands()),
        outputs: texts(tuned.outputs()),
        family: candidate.family.to_owned(),
        schedule: candidate.schedule.clone(),
        source,
        // Nanoseconds are finer than events can tell.
        time_us: (time_us * 1e3).round() / 1e3,
    }
}

/// What a region computes, on what, and where it comes from.
fn describe(tuned: &Tuned) -> String {
    let list = |types: Vec<&Type>| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let (operands, outputs) = (list(tuned.operands()), list(tuned.outputs()));
    let cases = match tuned.cases.as_slice() {
        [first, second, third, rest @ ..] if !rest.is_empty() => {
            format!("{first}, {second}, {third} and {} more", rest.len())
        }
        cases => cases.join(", "),
    };
    format!("{} ({operands}) -> {outputs}; {cases}", tuned.region.describe())
}

/// A schedule without the punctuation of JSON: `gemm rows=64 columns=32`.
fn readable(schedule: &str) -> String {
    let Ok(Value::Object(fields)) = serde_json::from_str(schedule) else { return schedule.to_owned() };
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let family = fields.get("family").map(plain);
    let others = fields.iter().filter(|(name, _)| *name != "family");
    let others = others.map(|(name, value)| format!("{name}={}", plain(value)));
    family.into_iter().chain(others).collect::<Vec<_>>().join(" ")
}

/// Text in lines of at most the width of tables.
fn wrapped(text: &str) -> String {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        let used = lines.last().map_or(0, |line| line.chars().count());
        if used > 0 && used + 1 + word.chars().count() > crate::cli::WIDTH as usize {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use hyenac_kernels::{TUNING_SCHEMA, Tuning, TuningDatabase};

    use super::super::collect::tests::regions;
    use super::*;

    #[test]
    fn the_models_choice_is_judged_by_what_was_measured() {
        let (measured, known) = (Outcome::Measured, Outcome::Known);
        let failed = Outcome::Failed(String::new());
        assert_eq!(verdict(&[measured(5.0)], 2.0), None);
        assert_eq!(verdict(&[failed.clone(), measured(5.0)], 2.0), None);
        let of = |outcomes: &[Outcome]| verdict(outcomes, 2.0).unwrap();
        let slow = of(&[measured(5.0), failed.clone(), known(4.0), Outcome::NotMeasured]);
        assert_eq!(slow, Verdict { fastest: 2, loses_us: 1.0, notable: true });
        assert_eq!(of(&[measured(4.0), measured(5.0)]), Verdict { fastest: 0, loses_us: 0.0, notable: false });
        assert!(!of(&[measured(8.1), measured(8.0)]).notable);

        let outcomes = [vec![measured(5.0), known(4.0)], vec![measured(4.0), failed], vec![Outcome::NotMeasured]];
        let expected = Summary { timed: 3, known: 1, failed: 1, left: 1, judged: 1, misjudged: 1, lost_us: 1.0 };
        assert_eq!(summary(&outcomes, &Device::h200()), expected);
    }

    #[test]
    fn tables_show_times_marks_and_failures() {
        let (regions, device) = (regions(), Device::h200());
        let mut outcomes = regions.outcomes(None, &device);
        let several = regions.list.iter().position(|tuned| tuned.candidates.len() > 2).unwrap();
        outcomes[several][0] = Outcome::Measured(7.0);
        outcomes[several][1] = Outcome::Measured(3.25);
        outcomes[several][2] = Outcome::Failed("unlaunchable".to_owned());
        let text = tables(&regions, &outcomes, &device);
        for part in ["region 1: ", "predicted", "model", "fastest", "5.2", "it loses 3.75 us", "unlaunchable"] {
            assert!(text.contains(part), "`{part}` is missing in:\n{text}");
        }
        assert!(text.contains("frozen, again"), "{text}");
        assert!(!text.contains('{'), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= crate::cli::WIDTH as usize), "{text}");
    }

    #[test]
    fn what_was_measured_becomes_entries_that_prices_find() {
        let (regions, device) = (regions(), Device::h200());
        let mut outcomes = regions.outcomes(None, &device);
        outcomes[0][0] = Outcome::Measured(7.123_456);
        outcomes[1][0] = Outcome::Failed(String::new());
        let entries = entries(&regions, &outcomes, &device);
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].time_us, entries[0].family.as_str()), (7.123, regions.list[0].candidates[0].family));
        assert!(!entries[0].operands.is_empty() && entries[0].outputs.len() == 1);
        let (target, name) = (device.name.clone(), "NVIDIA H200".to_owned());
        let (driver, nvrtc, date) = (None, None, None);
        let database = TuningDatabase { schema: TUNING_SCHEMA, target, device: name, driver, nvrtc, date, entries };
        let database = TuningDatabase::parse(&database.to_json().unwrap()).unwrap();
        let tuning = Tuning::new(&database, &device).unwrap();
        assert_eq!(regions.outcomes(Some(&tuning), &device)[0][0], Outcome::Known(7.123));
    }

    #[test]
    fn schedules_read_well() {
        assert_eq!(readable(r#"{"family":"gemm","rows":64,"kind":"f16"}"#), "gemm kind=f16 rows=64");
        assert_eq!(readable("cpu"), "cpu");
    }
}
