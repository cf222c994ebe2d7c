//! Compilation: deterministic, storable, cached, and clear about what it refuses.

use std::fs;

use hyenac::target::Machine;
use hyenac::{
    BlockConfig, Cache, Compilation, CompileOptions, Device, DeviceChoice, Error, Executable, Fuse, HyenaBlock, Mode,
    RuleFile, TuningChoice, TuningFile, compile, compile_cached,
};
use hyenac_ir::Op;
use hyenac_kernels::{TUNING_SCHEMA, TuningDatabase, TuningEntry, families, region_key, source_hash};
use hyenac_passes::Basis;

fn small() -> BlockConfig {
    BlockConfig { d_model: 16, d_inner: 32, filter_order: 8, l_max: 64, ..BlockConfig::benchmark() }
}

fn options(machine: &str) -> CompileOptions {
    CompileOptions { machine: Machine::named(machine).unwrap(), ..CompileOptions::new(2, 40) }
}

fn refusal(config: &BlockConfig, options: &CompileOptions) -> Error {
    let error = compile(config, options).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    error
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    for machine in Machine::names() {
        for mode in [Mode::Live, Mode::Frozen] {
            let options = CompileOptions { mode, ..options(machine) };
            let json = || compile(&small(), &options).unwrap().to_json().unwrap();
            assert!(json() == json(), "{machine} {mode:?}");
        }
    }
}

#[test]
fn a_compilation_survives_being_stored() {
    for machine in ["cpu", "h200"] {
        let compilation = compile(&small(), &options(machine)).unwrap();
        assert_eq!(compilation.plan.is_some(), machine == "h200");
        let stored = Compilation::from_json(&compilation.to_json().unwrap()).unwrap();
        // Not `assert_eq`, which would print both.
        assert!(stored == compilation, "{machine}: what was stored is something else");
    }
}

#[test]
fn the_cache_gives_what_compiling_gives() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let entries = || fs::read_dir(folder.path().join("plan")).unwrap().count();
    let fresh = compile(&small(), &options("h200")).unwrap();
    for _ in 0..2 {
        assert!(compile_cached(&small(), &options("h200"), &cache).unwrap() == fresh);
        assert_eq!(entries(), 1);
    }
    // Whatever a compilation depends on makes another entry.
    let other = BlockConfig { shift: 0.25, ..small() };
    let live = CompileOptions { mode: Mode::Live, ..options("h200") };
    let without = CompileOptions { without: vec!["fuse-gelu*".to_owned()], ..options("h200") };
    let untuned = CompileOptions { tuning: TuningChoice::None, ..options("h200") };
    let others = [live, without, untuned, options("a100")].map(|options| (small(), options));
    for (config, options) in [(other, options("h200"))].into_iter().chain(others) {
        let before = entries();
        let cached = compile_cached(&config, &options, &cache).unwrap();
        assert_eq!(entries(), before + 1);
        assert_eq!((cached.config, &cached.options), (config, &options));
    }
}

#[test]
fn a_damaged_cache_entry_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let fresh = compile_cached(&small(), &options("cpu"), &cache).unwrap();
    let entry = fs::read_dir(folder.path().join("plan")).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&entry).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [&whole[..whole.len() / 2], &flipped, b"", b"nonsense"] {
        fs::write(&entry, damaged).unwrap();
        assert!(compile_cached(&small(), &options("cpu"), &cache).unwrap() == fresh);
        assert!(fs::read(&entry).unwrap() == whole, "the entry was not made again");
    }
}

#[test]
fn fusing_lowers_the_number_of_launches() {
    let launches = |fuse| {
        let options = CompileOptions { fuse, mode: Mode::Live, ..options("h200") };
        compile(&small(), &options).unwrap().plan.unwrap().launches.len()
    };
    assert!(launches(Fuse::All) * 3 / 2 < launches(Fuse::None));
}

#[test]
fn frozen_weights_move_launches_to_the_set_up() {
    let plan = |mode| compile(&small(), &CompileOptions { mode, ..options("h200") }).unwrap().plan.unwrap();
    let (live, frozen) = (plan(Mode::Live), plan(Mode::Frozen));
    assert!(live.setup.is_empty() && !frozen.setup.is_empty());
    assert!(frozen.launches.len() < live.launches.len());
}

#[test]
fn launches_of_a_block_begin_early_where_they_read_late() {
    let machine = Machine::named("h200").unwrap();
    for length in [256, 1024] {
        let options = CompileOptions { machine: machine.clone(), mode: Mode::Live, ..CompileOptions::new(1, length) };
        let launches = compile(&BlockConfig::benchmark(), &options).unwrap().plan.unwrap().launches;
        let find = |family: &str| launches.iter().find(|launch| launch.family == family);
        for launch in &launches {
            assert!(launch.early.iter().all(|early| launch.after.contains(early)), "{}", launch.computes);
        }
        // Launch 0 packs the weights. The head reads its own late, the tail its own before anything else.
        let tail = find("tail").unwrap();
        assert!(tail.after.contains(&0) && !tail.early.contains(&0));
        if let Some(head) = find("panel") {
            assert_eq!((&head.after[..], &head.early[..]), (&[0][..], &[0][..]));
        }
        assert!(length == 256 || find("panel").is_some());
        // Its rows are another matter, where it is small.
        assert!(length != 256 || tail.early == tail.after[1..]);
    }
}

#[test]
fn sizes_without_meaning_are_refused() {
    let error = refusal(&BlockConfig { positions: hyenac::Positions::Max, ..small() }, &CompileOptions::new(1, 65));
    assert!(error.to_string().contains("seq_len = 65") && error.to_string().contains("l_max = 64"), "{error}");
    let error = refusal(&small(), &CompileOptions::new(1, 0));
    assert!(error.to_string().contains("seq_len = 0"), "{error}");
    let error = refusal(&small(), &CompileOptions::new(usize::MAX, 2));
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    let error = refusal(&BlockConfig { d_model: 20, ..small() }, &options("cpu"));
    assert!(error.to_string().contains("d_model = 20"), "{error}");
}

#[test]
fn bad_rules_are_refused_by_file_and_line() {
    let rules = vec![RuleFile { name: "mine.rules".to_owned(), text: "# comment\nrule broken\n  (neg\n".to_owned() }];
    let error = refusal(&small(), &CompileOptions { rules, ..options("cpu") });
    assert!(matches!(error, Error::Rules(_)) && error.to_string().starts_with("mine.rules:"), "{error}");
    let without = vec!["no-such-rule-*".to_owned()];
    let error = refusal(&small(), &CompileOptions { without, ..options("cpu") });
    assert!(error.to_string().contains("no-such-rule-*") && error.to_string().contains("hyenac rules list"), "{error}");
    assert!(RuleFile::read(std::path::Path::new("/nonexistent/x.rules")).is_err());
}

#[test]
fn weights_of_another_block_are_refused() {
    let compilation = compile(&small(), &options("cpu")).unwrap();
    let other = BlockConfig { layer_norm_eps: 1e-3, ..small() };
    let weights = other.weights().into_iter().map(|(name, shape)| (name.to_owned(), vec![0.5; shape.iter().product()]));
    let block = HyenaBlock::new(other, weights.collect()).unwrap();
    let error = Executable::build(&compilation, &block, DeviceChoice::Cpu).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("0.001"), "{error}");
}

#[test]
fn without_a_gpu_auto_runs_on_the_cpu_and_says_why() {
    let present = hyenac::Present::find(DeviceChoice::Auto).unwrap();
    match (&present.gpu, hyenac::Present::find(DeviceChoice::Cuda)) {
        (Some(_), Ok(_)) => assert_eq!(present.note, None),
        (None, Err(error)) => {
            assert_eq!(error.exit_code(), 3);
            let note = present.note.clone().unwrap();
            assert!(note.contains(&error.to_string()), "{note}");
            assert_eq!(present.machine(), Machine::Cpu);
        }
        (gpu, other) => panic!("{gpu:?}, but {other:?}"),
    }
}

/// A database that gives every schedule of every region of a compilation but the chosen ones a time of nothing.
fn database(compilation: &Compilation) -> TuningDatabase {
    let device = Device::h200();
    let mut entries: Vec<TuningEntry> = Vec::new();
    for node in compilation.optimized.nodes() {
        let Op::Region(chosen) = &compilation.optimized.node(node).op else { continue };
        for family in families() {
            for candidate in family.candidates(chosen, &device).unwrap_or_default() {
                let entry = TuningEntry {
                    region: region_key(chosen),
                    computes: chosen.describe(),
                    operands: Vec::new(),
                    outputs: Vec::new(),
                    family: candidate.family.to_owned(),
                    source: source_hash(&family.lower(chosen, &candidate.schedule, &device).unwrap()),
                    time_us: if candidate.schedule == chosen.schedule { 50.0 } else { 0.0 },
                    schedule: candidate.schedule,
                };
                let same = |known: &TuningEntry| known.region == entry.region && known.schedule == entry.schedule;
                if !entries.iter().any(same) {
                    entries.push(entry);
                }
            }
        }
    }
    let (target, device) = ("h200".to_owned(), "NVIDIA H200".to_owned());
    TuningDatabase { schema: TUNING_SCHEMA, target, device, driver: None, nvrtc: None, date: None, entries }
}

#[test]
fn measured_times_choose_schedules() {
    let untuned = CompileOptions { tuning: TuningChoice::None, ..options("h200") };
    let modelled = compile(&small(), &untuned).unwrap();
    assert!(modelled.report.regions.iter().all(|region| region.basis == Basis::Modelled));

    let text = database(&modelled).to_json().unwrap();
    let file = |text: String| TuningChoice::File(TuningFile { name: "tuning.json".to_owned(), text });
    let tuned = CompileOptions { tuning: file(text.clone()), ..untuned.clone() };
    let compilation = compile(&small(), &tuned).unwrap();
    assert!(compilation.report.regions.iter().any(|region| region.basis == Basis::Measured));
    assert!(compilation.plan != modelled.plan, "the slowest schedules are still the ones that run");
    let prices = |compilation: &Compilation| -> Vec<f64> {
        compilation.report.regions.iter().map(|region| region.time_us).collect()
    };
    assert_eq!(prices(&compilation), prices(&modelled), "regions compete at the models' prices");
    assert_ne!(compilation.fingerprint, modelled.fingerprint);
    assert!(compile(&small(), &tuned).unwrap() == compilation);
    let stored = Compilation::from_json(&compilation.to_json().unwrap()).unwrap();
    assert!(stored == compilation, "what was stored is something else");

    // Kernels that have changed since leave nothing of it.
    let mut outdated = database(&modelled);
    outdated.entries.iter_mut().for_each(|entry| entry.source = "0".repeat(entry.source.len()));
    let outdated = CompileOptions { tuning: file(outdated.to_json().unwrap()), ..untuned };
    assert!(compile(&small(), &outdated).unwrap().plan == modelled.plan);
}

#[test]
fn tuning_databases_are_checked() {
    let file = |text: &str| TuningChoice::File(TuningFile { name: "tuning.json".to_owned(), text: text.to_owned() });
    let error = refusal(&small(), &CompileOptions { tuning: file("{\"schema\": 1}"), ..options("h200") });
    assert!(error.to_string().starts_with("tuning.json: is no tuning database: missing field"), "{error}");
    let text = database(&compile(&small(), &options("h200")).unwrap()).to_json().unwrap();
    let error = refusal(&small(), &CompileOptions { tuning: file(&text), ..options("a100") });
    assert!(error.to_string().contains("measured for target `h200`, but the target is `a100`"), "{error}");
}
