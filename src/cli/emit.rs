//! `hyenac emit`: kernel sources, plan and compiled kernels as files.

use std::path::PathBuf;

use clap::Args;
use hyenac::runtime::cuda::{KNOWN_ARCHITECTURES, Resources, discovery};
use hyenac::{Cache, Device, Machine, Plan};
use serde::Serialize;

use super::Outcome;
use super::console::Console;
use super::failure::Failure;
use super::files::{make_folder, write_bytes, write_json};
use super::options::{BlockOptions, CompileFlags, ModeName};
use super::session::Session;
use super::table::{Align, bytes, table};

const EXAMPLES: &str = "\
Examples:
  hyenac emit --out kernels                   for the device present, or for an H200
  hyenac emit --arch sm_80 --seq-len 256 --out kernels
  hyenac emit --arch sm_90a --fuse none --out kernels";

/// Write kernel sources (.cu) and plan.json to a folder; with NVRTC also PTX, cubins and resources.json.
///
/// Needs no GPU. The same input gives the same files, byte for byte.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Emit {
    /// Architecture to compile for, e.g. sm_80, sm_90a, sm_100 [default: that of the target]
    #[arg(long, value_name = "ARCH", value_parser = arch)]
    arch: Option<String>,
    /// Folder to write to; it is created
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How weights are bound
    #[arg(long, value_enum, default_value = "live")]
    mode: ModeName,
    #[command(flatten)]
    block: BlockOptions,
    #[command(flatten)]
    compile: CompileFlags,
}

/// What a kernel uses, as in `resources.json`.
#[derive(Serialize)]
struct KernelResources<'a> {
    kernel: &'a str,
    arch: &'a str,
    #[serde(flatten)]
    resources: Resources,
}

impl Emit {
    /// Runs the command.
    pub fn run(self, console: &Console) -> Result<Outcome, Failure> {
        let session = Session::open(&self.compile, true)?;
        let session = match (&self.arch, &session.options().machine) {
            (Some(arch), machine) => {
                let machine = for_arch(arch, machine, self.compile.target.is_some());
                session.with_machine(machine)
            }
            (None, _) => session,
        };
        let (batch, seq_len) = self.block.shape();
        let (compilation, _) = session.compile(&self.block.config(), batch, seq_len, self.mode.mode())?;
        let Some(plan) = &compilation.plan else {
            let why = "the CPU runs no kernels, so there is nothing to emit; give --target or --arch of a GPU";
            return Err(Failure::usage("--target cpu", why));
        };
        make_folder(&self.out)?;
        for (number, kernel) in plan.kernels.iter().enumerate() {
            write_bytes(&self.file(number, &kernel.name, "cu"), kernel.source.as_bytes())?;
        }
        write_json(&self.out.join("plan.json"), plan)?;
        let mut text = format!(
            "{} kernels and plan.json for {} in {}\n",
            plan.kernels.len(),
            plan.device.arch,
            self.out.display()
        );
        match discovery::nvrtc() {
            Ok(_) => text += &self.compile_kernels(plan, console)?,
            Err(reason) => console.note(&format!("without PTX, cubins and resources.json: {reason}")),
        }
        console.print(&text)?;
        Ok(Outcome::Success)
    }

    /// A kernel's file. Kernels of different shapes may have the same name, so that its number in the plan leads.
    fn file(&self, number: usize, name: &str, extension: &str) -> PathBuf {
        self.out.join(format!("{number:02}_{name}.{extension}"))
    }

    /// Writes PTX, machine code and resources of every kernel, and tabulates the resources.
    fn compile_kernels(&self, plan: &Plan, console: &Console) -> Result<String, Failure> {
        let arch = plan.device.arch.as_str();
        let cache = Cache::from_environment();
        let mut progress = console.progress("NVRTC", plan.kernels.len());
        let mut compiled = Vec::new();
        for (number, kernel) in plan.kernels.iter().enumerate() {
            progress.message(kernel.name.clone());
            let kernel = cache.compiled_kernel(kernel, arch).map_err(hyenac::Error::from)?;
            write_bytes(&self.file(number, &kernel.name, "ptx"), kernel.ptx.as_bytes())?;
            write_bytes(&self.file(number, &kernel.name, "cubin"), &kernel.cubin)?;
            compiled.push(kernel);
            progress.step();
        }
        drop(progress);
        let resources: Vec<KernelResources<'_>> = compiled
            .iter()
            .map(|kernel| KernelResources { kernel: &kernel.name, arch, resources: kernel.resources })
            .collect();
        write_json(&self.out.join("resources.json"), &resources)?;
        let header = [
            ("kernel", Align::Left),
            ("registers", Align::Right),
            ("spilt bytes", Align::Right),
            ("stack", Align::Right),
            ("static shared", Align::Right),
            ("cubin", Align::Right),
        ];
        let rows = compiled.iter().map(|kernel| {
            let resources = kernel.resources;
            vec![
                kernel.name.clone(),
                resources.registers.to_string(),
                (resources.spill_store_bytes + resources.spill_load_bytes).to_string(),
                resources.stack_bytes.to_string(),
                bytes(resources.static_shared_bytes.into()),
                bytes(kernel.cubin.len() as u64),
            ]
        });
        Ok(format!("PTX, cubins and resources.json:\n{}", table(&header, rows)))
    }
}

/// Architectures that `--arch` knows.
fn arch(text: &str) -> Result<String, String> {
    if KNOWN_ARCHITECTURES.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!("known architectures: {}", KNOWN_ARCHITECTURES.join(", ")))
    }
}

/// The machine given, or the known one that comes nearest to an architecture, compiling for that architecture.
fn for_arch(arch: &str, machine: &Machine, given: bool) -> Machine {
    let number: u32 = arch.trim_start_matches("sm_").trim_end_matches('a').parse().unwrap_or(0);
    let nearest = match number {
        ..90 => Device::a100(),
        90..100 => Device::h200(),
        _ => Device::b200(),
    };
    match machine {
        Machine::Cpu if given => Machine::Cpu,
        Machine::Gpu(device) if given => Machine::Gpu(Device { arch: arch.to_owned(), ..device.clone() }),
        _ => Machine::Gpu(Device {
            measured: nearest.measured && nearest.arch == arch,
            arch: arch.to_owned(),
            ..nearest
        }),
    }
}
