//! `hyenac rules`: what the rewrite rules are, and whether they are sound.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use hyenac::RuleFile;
use hyenac_passes::RuleSet;
use hyenac_passes::soundness::{INSTANCES, Verdict, test_rule};
use serde::Serialize;

use super::Outcome;
use super::console::Console;
use super::failure::Failure;
use super::summary::field;

const EXAMPLES: &str = "\
Examples:
  hyenac rules list                           every built-in rule with its equation
  hyenac rules list --json
  hyenac rules test                           test the built-in rules
  hyenac rules test my.rules                  test the rules of a file";

const LIST_EXAMPLES: &str = "\
Examples:
  hyenac rules list > built-in.rules
  hyenac rules list --json | jq -r '.[].equation'";

const TEST_EXAMPLES: &str = "\
Examples:
  hyenac rules test
  hyenac rules test my.rules --seed 7";

/// List rewrite rules, or test them for soundness.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Rules {
    #[command(subcommand)]
    command: RulesCommand,
}

#[derive(Subcommand)]
enum RulesCommand {
    /// Print the built-in rules in the syntax of rule files
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Print JSON instead
        #[arg(long)]
        json: bool,
    },
    #[command(after_help = TEST_EXAMPLES)]
    /// Draw instances of each rule and evaluate both sides; exit code 1 when one is unsound
    Test {
        /// File of rules [default: the built-in ones]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Seed of the instances
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u64,
        /// Instances of each rule
        #[arg(long, value_name = "N", default_value_t = INSTANCES as u32,
              value_parser = clap::value_parser!(u32).range(1..=100_000))]
        instances: u32,
    },
}

/// A rule as JSON.
#[derive(Serialize)]
struct ListedRule<'a> {
    name: &'a str,
    file: &'a str,
    line: usize,
    equation: &'a str,
    variables: BTreeMap<&'a str, String>,
    conditions: Vec<String>,
    within: Option<f64>,
    left: String,
    right: String,
}

impl Rules {
    /// Runs the command.
    pub fn run(self, console: &Console) -> Result<Outcome, Failure> {
        match self.command {
            RulesCommand::List { json } => list(json, console),
            RulesCommand::Test { file, seed, instances } => test(file.as_deref(), seed, instances as usize, console),
        }
    }
}

fn list(json: bool, console: &Console) -> Result<Outcome, Failure> {
    let rules = RuleSet::builtin();
    if !json {
        console.print(rules.text().trim_end())?;
        return Ok(Outcome::Success);
    }
    let listed: Vec<ListedRule<'_>> = rules
        .iter()
        .map(|rule| ListedRule {
            name: &rule.name,
            file: &rule.file,
            line: rule.line,
            equation: &rule.equation,
            variables: rule.types.iter().map(|(name, ty)| (name.as_str(), ty.to_string())).collect(),
            conditions: rule.conditions.iter().map(ToString::to_string).collect(),
            within: rule.within,
            left: rule.left.to_string(),
            right: rule.right.to_string(),
        })
        .collect();
    let text = serde_json::to_string_pretty(&listed).map_err(|error| Failure::usage("--json", error.to_string()))?;
    console.print(&text)?;
    Ok(Outcome::Success)
}

/// Tests the rules of a file, or the built-in ones.
fn test(file: Option<&Path>, seed: u64, instances: usize, console: &Console) -> Result<Outcome, Failure> {
    let rules = match file {
        Some(path) => parse(&RuleFile::read(path)?)?,
        None => RuleSet::builtin(),
    };
    let mut progress = console.progress("rules", rules.len());
    let mut verdicts = Vec::new();
    for rule in &rules {
        progress.message(rule.name.clone());
        verdicts.push((rule, test_rule(rule, seed, instances)));
        progress.step();
    }
    drop(progress);
    let sound = verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Sound { .. })).count();
    let mut text = String::new();
    for (rule, verdict) in &verdicts {
        text += &match verdict {
            Verdict::Sound { .. } => {
                let kind = rule.within.map_or("exact".to_owned(), |bound| format!("within {bound:.1e}"));
                format!("sound    {}: {verdict}, {kind}\n", rule.name)
            }
            Verdict::Unsound(_) | Verdict::NeverApplicable => field("UNSOUND", &format!("{}: {verdict}", rule.name)),
        };
    }
    text += &format!("{sound} of {} rules are sound", rules.len());
    console.print(&text)?;
    Ok(Outcome::of(sound == rules.len()))
}

fn parse(file: &RuleFile) -> Result<RuleSet, Failure> {
    Ok(RuleSet::parse(&file.name, &file.text).map_err(hyenac::Error::from)?)
}

/// Refuses a file with a rule that is not sound.
pub fn require_sound(file: &RuleFile) -> Result<(), Failure> {
    for rule in &parse(file)? {
        let verdict = test_rule(rule, 0, INSTANCES);
        if !matches!(verdict, Verdict::Sound { .. }) {
            let what = format!("rule {} of {} is not sound: {verdict}", rule.name, file.name);
            return Err(hyenac::Error::Check(format!("{what}; --trust-rules uses it all the same")).into());
        }
    }
    Ok(())
}
