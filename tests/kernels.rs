//! Every kernel of the suite goes through the real compiler for every target, without a GPU.

use std::collections::BTreeMap;

use hyenac::runtime::cuda::{Cache, discovery, nvrtc};
use hyenac::{BlockConfig, CompileOptions, Fuse, Machine, Mode, Precision, compile};
use hyenac_kernels::KernelSource;
use rayon::prelude::*;

const SUITE: [(usize, usize); 16] = [
    (2, 128),
    (1, 131),
    (1, 256),
    (4, 256),
    (32, 256),
    (1, 512),
    (2, 512),
    (16, 512),
    (4, 541),
    (8, 997),
    (1, 1024),
    (1, 2048),
    (2, 2048),
    (2, 2053),
    (1, 4096),
    (2, 4096),
];
const TARGETS: [&str; 3] = ["a100", "h200", "b200"];

/// Distinct kernels of the suite on a machine, by source, with the first case that needs each.
fn suite_kernels(target: &str) -> (String, BTreeMap<String, (KernelSource, String)>) {
    let machine = Machine::named(target).unwrap();
    let Machine::Gpu(device) = &machine else { panic!("{target} is no GPU") };
    let arch = device.arch.clone();
    let mut cases = Vec::new();
    for (batch, seq_len) in SUITE {
        for precision in [Precision::Mixed, Precision::Ieee] {
            for fuse in [Fuse::All, Fuse::None] {
                cases.push((batch, seq_len, precision, fuse));
            }
        }
    }
    let plans: Vec<_> = cases
        .into_par_iter()
        .map(|(batch, seq_len, precision, fuse)| {
            let options = CompileOptions {
                precision,
                fuse,
                mode: Mode::Live,
                machine: machine.clone(),
                ..CompileOptions::new(batch, seq_len)
            };
            let plan = compile(&BlockConfig::benchmark(), &options).unwrap().plan.unwrap();
            (format!("{batch}x{seq_len} {precision:?} {fuse:?} {target}"), plan)
        })
        .collect();
    let mut kernels = BTreeMap::new();
    for (case, plan) in plans {
        for kernel in plan.kernels {
            kernels.entry(kernel.source.clone()).or_insert((kernel, case.clone()));
        }
    }
    (arch, kernels)
}

#[test]
fn every_kernel_of_the_suite_compiles_for_every_target_and_none_spills_on_hopper() {
    if discovery::nvrtc_for_tests().is_none() {
        return;
    }
    for target in TARGETS {
        let (arch, kernels) = suite_kernels(target);
        assert!(kernels.len() > 100, "{target}: {} kernels", kernels.len());
        let failures: Vec<String> = kernels
            .into_values()
            .collect::<Vec<_>>()
            .into_par_iter()
            .filter_map(|(kernel, case)| match nvrtc::compile(&kernel, &arch) {
                Ok(compiled) if arch == "sm_90a" && compiled.resources.spill_store_bytes > 0 => {
                    Some(format!("{case}: {} spills {} bytes", kernel.name, compiled.resources.spill_store_bytes))
                }
                Ok(_) => None,
                Err(error) => Some(format!("{case}: {error}")),
            })
            .collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

#[test]
fn resources_of_the_default_block() {
    if discovery::nvrtc_for_tests().is_none() {
        return;
    }
    let mut table = String::new();
    for precision in [Precision::Mixed, Precision::Ieee] {
        let options = CompileOptions { precision, mode: Mode::Live, ..CompileOptions::new(1, 1024) };
        let compilation = compile(&BlockConfig::benchmark(), &options).unwrap();
        let plan = compilation.plan.unwrap();
        let compiled = nvrtc::compile_all(&plan.kernels, &plan.device.arch, &Cache::disabled()).unwrap();
        for (kernel, compiled) in plan.kernels.iter().zip(compiled) {
            let resources = compiled.resources;
            let launch = plan.launches.iter().find(|launch| plan.kernels[launch.kernel] == *kernel).unwrap();
            table.push_str(&format!(
                "{precision:?} {}: {} registers, {} bytes spilled, {} bytes shared, grid {:?}, block {:?}\n",
                kernel.name,
                resources.registers,
                resources.spill_store_bytes,
                u64::from(launch.shared_bytes) + u64::from(resources.static_shared_bytes),
                launch.grid,
                launch.block
            ));
        }
    }
    insta::with_settings!({ snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots/kernels"),
                            prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("resources_1x1024", table);
    });
}
