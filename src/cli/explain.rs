//! `hyenac explain`: what the compiler did, and why.

use std::path::PathBuf;

use clap::Args;
use hyenac::{Compilation, Machine, Plan};
use hyenac_ir::Op;
use hyenac_kernels::{Buffer, Launch, Place};

use super::Outcome;
use super::console::Console;
use super::failure::Failure;
use super::files::{write_bytes, write_json};
use super::options::{BlockOptions, CompileFlags, ModeName};
use super::session::{Session, mode_name};
use super::summary::{call_regions, field};
use super::table::{Align, bytes, table};

const EXAMPLES: &str = "\
Examples:
  hyenac explain                              1 x 1024 for the device present, or for an H200
  hyenac explain --seq-len 32768 --target h200
  hyenac explain --fuse none --mode live
  hyenac explain --dot block.dot && dot -Tsvg block.dot -o block.svg
  hyenac explain --json explain.json";

/// Show what the compiler did: stages, rules that fired, choices and their alternatives, plan, memory.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Explain {
    /// How weights are bound
    #[arg(long, value_enum, default_value = "live")]
    mode: ModeName,
    /// File to write the graph of regions to, in dot
    #[arg(long, value_name = "FILE")]
    dot: Option<PathBuf>,
    /// File to write everything to, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    block: BlockOptions,
    #[command(flatten)]
    compile: CompileFlags,
}

impl Explain {
    /// Runs the command.
    pub fn run(self, console: &Console) -> Result<Outcome, Failure> {
        let session = Session::open(&self.compile, true)?;
        let (batch, seq_len) = self.block.shape();
        let config = self.block.config();
        let (compilation, _) = session.compile(&config, batch, seq_len, self.mode.mode())?;
        if let Some(path) = &self.json {
            write_json(path, &compilation)?;
        }
        if let Some(path) = &self.dot {
            write_bytes(path, compilation.optimized.to_dot().as_bytes())?;
        }
        let mut text = stages(&compilation, self.block.variant.name(), session.precision());
        text += &format!("\n{}", compilation.report.table());
        if let Some(plan) = &compilation.plan {
            text += &launches(plan);
            text += &buffers(plan);
            text += &memory(plan);
        }
        console.print(&text)?;
        Ok(Outcome::Success)
    }
}

/// What each stage came to.
fn stages(compilation: &Compilation, variant: &str, precision: &str) -> String {
    let Compilation { options, config, reference, optimized, report, plan, .. } = compilation;
    let machine = match &options.machine {
        Machine::Cpu => "cpu".to_owned(),
        Machine::Gpu(device) => {
            let constants = if device.measured { "measured" } else { "estimated" };
            format!("{} ({}, {constants} constants)", device.name, device.arch)
        }
    };
    let block = format!(
        "{} x {}, d_model {}, d_inner {}, l_max {}, {variant} preset, {precision} precision, {} weights",
        options.batch,
        options.seq_len,
        config.d_model,
        config.d_inner,
        config.l_max,
        mode_name(options.mode)
    );
    let regions = optimized.nodes().filter(|&node| matches!(optimized.node(node).op, Op::Region(_))).count();
    let mut text = "Stages\n".to_owned();
    text += &field("block", &block);
    text += &field("target", &machine);
    text += &field("ops", &format!("{} elementary ops and tensors in the reference graph", reference.len()));
    text += &field("e-graph", &format!("{} nodes in {} classes", report.nodes, report.classes));
    text += &field("regions", &format!("{regions}, of which a call runs {}", call_regions(compilation).count()));
    match plan {
        Some(plan) => {
            let counts = (plan.launches.len(), plan.setup.len(), plan.kernels.len());
            text +=
                &field("plan", &format!("{} launches a call, {} at bind, {} kernels", counts.0, counts.1, counts.2));
        }
        None => text += &field("plan", "none: the CPU evaluates the regions one by one"),
    }
    text
}

/// Every launch, with what it waits for and what it reads and writes.
fn launches(plan: &Plan) -> String {
    let header = [
        ("", Align::Left),
        ("kernel", Align::Left),
        ("grid", Align::Left),
        ("block", Align::Left),
        ("shared", Align::Right),
        ("after", Align::Left),
        ("us", Align::Right),
        ("reads -> writes", Align::Left),
    ];
    let mut text = String::new();
    for (title, launches) in [("Launches at bind", &plan.setup), ("Launches of a call", &plan.launches)] {
        if launches.is_empty() {
            continue;
        }
        let rows = launches.iter().enumerate().map(|(number, launch)| {
            let names = |writes| -> Vec<&str> {
                let arguments = launch.arguments.iter().filter(|argument| argument.writes == writes);
                arguments.filter_map(|argument| Some(plan.buffers.get(argument.buffer)?.name.as_str())).collect()
            };
            vec![
                number.to_string(),
                plan.kernels.get(launch.kernel).map_or(String::new(), |kernel| kernel.name.clone()),
                dimensions(launch.grid),
                dimensions(launch.block),
                bytes(launch.shared_bytes.into()),
                after(launch),
                format!("{:.2}", launch.predicted_us),
                format!("{} -> {}", names(false).join(" "), names(true).join(" ")),
            ]
        });
        text += &format!("\n{title}\n{}", table(&header, rows));
    }
    if plan.launches.iter().any(|launch| !launch.early.is_empty()) {
        text += "  ~ begins before that launch has ended, and waits for it inside\n";
    }
    text
}

/// The launches that one waits for.
fn after(launch: &Launch) -> String {
    let mark = |other: &usize| if launch.early.contains(other) { "~" } else { "" };
    launch.after.iter().map(|other| format!("{other}{}", mark(other))).collect::<Vec<_>>().join(" ")
}

fn dimensions([x, y, z]: [u32; 3]) -> String {
    match (y, z) {
        (1, 1) => x.to_string(),
        (_, 1) => format!("{x}x{y}"),
        _ => format!("{x}x{y}x{z}"),
    }
}

/// Every buffer that is no tensor of the caller, with its place.
fn buffers(plan: &Plan) -> String {
    let place = |buffer: &Buffer| match &buffer.place {
        Place::Input(_) | Place::Weight(_) => None,
        Place::Output(number) => Some(format!("output {number}")),
        Place::Arena(offset) => Some(format!("arena + {offset}")),
        Place::Frozen(offset) => Some(format!("frozen + {offset}")),
        Place::SetupArena(offset) => Some(format!("arena at bind + {offset}")),
    };
    let header = [("name", Align::Left), ("type", Align::Left), ("size", Align::Right), ("place", Align::Left)];
    let rows = plan
        .buffers
        .iter()
        .filter_map(|buffer| Some(vec![buffer.name.clone(), buffer.ty.clone(), bytes(buffer.bytes), place(buffer)?]));
    format!("\nBuffers\n{}", table(&header, rows))
}

fn memory(plan: &Plan) -> String {
    let mut text = "\nMemory\n".to_owned();
    let over = plan.arena_bytes as f64 / plan.largest_live_bytes.max(1) as f64;
    text += &field(
        "arena",
        &format!("{} bytes; the largest live set is {} bytes ({over:.2}x)", plan.arena_bytes, plan.largest_live_bytes),
    );
    text += &field("frozen", &format!("{} bytes, and {} more at bind", plan.frozen_bytes, plan.setup_arena_bytes));
    text
}
