use hyenac_ir::{Binding, DType, Value};

use super::*;
use crate::registry::{Price, families, price};

/// `x w^T` in f16, which several families accept with several schedules.
fn linear(binding: Binding, rows: usize) -> Region {
    let mut body = Graph::new();
    let parameter = |body: &mut Graph, index, shape: &[usize], binding| {
        body.add(Op::Parameter { index, dtype: DType::F16, shape: shape.to_vec(), binding }, &[]).unwrap()
    };
    let x = parameter(&mut body, 0, &[rows, 64], Binding::Input);
    let w = parameter(&mut body, 1, &[96, 64], binding);
    let y = body.add(Op::Linear {}, &[x, w]).unwrap();
    body.add_output(y);
    Region::new(body)
}

fn candidates(region: &Region, device: &Device) -> Vec<(&'static dyn Family, Candidate)> {
    let of = |family: &&'static dyn Family| {
        let family = *family;
        family.candidates(region, device).unwrap_or_default().into_iter().map(move |candidate| (family, candidate))
    };
    families().iter().flat_map(of).collect()
}

fn database(entries: Vec<TuningEntry>) -> TuningDatabase {
    let (target, device) = ("h200".to_owned(), "NVIDIA H200".to_owned());
    TuningDatabase { schema: TUNING_SCHEMA, target, device, driver: None, nvrtc: None, date: None, entries }
}

fn entry(region: &Region, family: &dyn Family, candidate: &Candidate, time_us: f64) -> TuningEntry {
    let lowered = family.lower(region, &candidate.schedule, &Device::h200()).unwrap();
    TuningEntry {
        region: region_key(region),
        computes: region.describe(),
        operands: Vec::new(),
        outputs: Vec::new(),
        family: candidate.family.to_owned(),
        schedule: candidate.schedule.clone(),
        source: source_hash(&lowered),
        time_us,
    }
}

fn priced(region: &Region, entries: Vec<TuningEntry>) -> Price {
    let device = Device::h200();
    let tuning = Tuning::new(&database(entries), &device).unwrap();
    price(region, &device, Some(&tuning)).unwrap()
}

#[test]
fn the_shipped_database_is_valid_and_for_the_device_of_its_name() {
    let shipped = TuningDatabase::parse(H200).unwrap();
    assert_eq!(shipped.target, Device::h200().name);
    assert_eq!(shipped.to_json().unwrap(), H200, "the file is not as `hyenac tune` writes it");
    assert!(Tuning::shipped(&Device::h200()).is_some());
    assert!(Tuning::shipped(&Device::a100()).is_none());
    let smaller = Device { multiprocessors: 114, ..Device::h200() };
    assert!(Tuning::shipped(&smaller).is_none());
}

#[test]
fn keys_are_stable_and_depend_on_what_kernels_depend_on() {
    let key = region_key(&linear(Binding::Weights, 128));
    assert_eq!(key, "dd8b6cc099fae58f64d998e12cbf48e7");
    assert_eq!(key, region_key(&linear(Binding::Input, 128)));
    let mut scheduled = linear(Binding::Weights, 128);
    scheduled.schedule = "{}".to_owned();
    assert_eq!(key, region_key(&scheduled));
    assert_ne!(key, region_key(&linear(Binding::Weights, 129)));
    let exchanged = {
        let mut body = Graph::new();
        let add = |body: &mut Graph, index, shape: &[usize]| -> Value {
            let op = Op::Parameter { index, dtype: DType::F16, shape: shape.to_vec(), binding: Binding::Input };
            body.add(op, &[]).unwrap()
        };
        let x = add(&mut body, 1, &[128, 64]);
        let w = add(&mut body, 0, &[96, 64]);
        let y = body.add(Op::Linear {}, &[x, w]).unwrap();
        body.add_output(y);
        Region::new(body)
    };
    assert_ne!(key, region_key(&exchanged));
}

#[test]
fn a_schedule_that_was_measured_to_be_faster_is_chosen_at_the_models_price() {
    let (region, device) = (linear(Binding::Weights, 128), Device::h200());
    let offers = candidates(&region, &device);
    let modelled = price(&region, &device, None).unwrap();
    assert!(!modelled.measured && offers.len() > 1);

    // What the model likes least, measured to be nearly nothing, is chosen.
    let (family, worst) = offers.iter().max_by(|a, b| a.1.time_us.total_cmp(&b.1.time_us)).unwrap();
    let chosen = priced(&region, vec![entry(&region, *family, worst, 0.125)]);
    assert!(chosen.measured);
    assert_eq!(chosen.candidate, Candidate { time_us: modelled.candidate.time_us, ..worst.clone() });

    // What the model likes best is slower than it hopes: only a schedule that was measured too takes its place.
    let (least, family) =
        (family, families().iter().find(|family| family.name() == modelled.candidate.family).unwrap());
    let slow = || entry(&region, *family, &modelled.candidate, 1e6);
    assert_eq!(priced(&region, vec![slow()]).candidate, modelled.candidate);
    let other = priced(&region, vec![slow(), entry(&region, *least, worst, 1e5)]);
    assert_eq!(other.candidate.schedule, worst.schedule);

    // Another region has nothing of it.
    let larger = linear(Binding::Weights, 256);
    assert_eq!(
        priced(&larger, vec![entry(&region, *family, &modelled.candidate, 0.0)]),
        price(&larger, &device, None).unwrap()
    );
}

#[test]
fn an_entry_of_other_kernels_or_of_another_device_is_ignored() {
    let (region, device) = (linear(Binding::Weights, 128), Device::h200());
    let modelled = price(&region, &device, None).unwrap();
    let offers = candidates(&region, &device);
    let (family, worst) = offers.iter().max_by(|a, b| a.1.time_us.total_cmp(&b.1.time_us)).unwrap();
    let current = entry(&region, *family, worst, 0.0);
    let stale = TuningEntry { source: region_key(&region), ..current.clone() };
    assert_eq!(priced(&region, vec![stale]), modelled);

    let tuning = Tuning::new(&database(vec![current]), &device).unwrap();
    let other = Device { multiprocessors: 66, ..device.clone() };
    assert_eq!(price(&region, &other, Some(&tuning)), price(&region, &other, None));
    let error = Tuning::new(&database(Vec::new()), &Device::a100()).unwrap_err();
    assert_eq!(error.to_string(), "was measured for target `h200`, but the target is `a100`");
}

#[test]
fn fingerprints_tell_databases_apart() {
    let (region, device) = (linear(Binding::Weights, 128), Device::h200());
    let offers = candidates(&region, &device);
    let print = |entries| Tuning::new(&database(entries), &device).unwrap().fingerprint().to_owned();
    let one = |time_us| vec![entry(&region, offers[0].0, &offers[0].1, time_us)];
    assert_eq!(print(one(1.5)), print(one(1.5)));
    assert_ne!(print(one(1.5)), print(one(1.25)));
    assert_ne!(print(one(1.5)), print(Vec::new()));
}

/// An entry that need not be of a real region.
fn plain(computes: &str, schedule: &str, time_us: f64) -> TuningEntry {
    TuningEntry {
        region: hash([computes.as_bytes()]),
        computes: computes.to_owned(),
        operands: vec!["f16[2]".to_owned()],
        outputs: vec!["f16[2]".to_owned()],
        family: "map".to_owned(),
        schedule: schedule.to_owned(),
        source: hash([schedule.as_bytes()]),
        time_us,
    }
}

#[test]
fn json_goes_both_ways() {
    let mut written = database(vec![plain("add", "{\"family\":\"map\"}", 1.25), plain("sin", "b", 0.1)]);
    written.date = Some("2026-12-01".to_owned());
    let text = written.to_json().unwrap();
    assert_eq!(TuningDatabase::parse(&text).unwrap(), written);
    assert_eq!(text.lines().filter(|line| line.contains("\"region\"")).count(), 2);
}

#[test]
fn newer_entries_replace_older_ones() {
    let mut older = database(vec![plain("sin", "a", 1.0), plain("sin", "b", 2.0)]);
    older.driver = Some("12.8".to_owned());
    let mut newer = database(vec![plain("sin", "b", 3.0), plain("add", "c", 4.0)]);
    newer.driver = Some("13.0".to_owned());
    let merged = older.clone().merge(newer.clone()).unwrap();
    assert_eq!(merged.driver.as_deref(), Some("13.0"));
    // Sorted, so that the file does not depend on what was measured first.
    let times: Vec<f64> = merged.entries.iter().map(|entry| entry.time_us).collect();
    assert_eq!(times, [4.0, 1.0, 3.0]);
    assert_eq!(merged.clone().merge(newer.clone()).unwrap(), merged);

    newer.target = "a100".to_owned();
    assert!(matches!(older.merge(newer), Err(TuningError::Target { .. })));
}

#[test]
fn bad_files_are_refused_by_name() {
    let with = |entry: TuningEntry| database(vec![plain("add", "a", 1.0), entry]).to_json().unwrap();
    let short = TuningEntry { region: "12".to_owned(), ..plain("sin", "a", 1.0) };
    let upper = TuningEntry { source: "A".repeat(HASH_LENGTH), ..plain("sin", "a", 1.0) };
    let text = database(Vec::new()).to_json().unwrap();
    for (text, part) in [
        (String::new(), "is no tuning database"),
        ("[]".to_owned(), "is no tuning database"),
        ("{\"schema\": 7, \"new\": 1}".to_owned(), "version 7 of the format, this hyenac reads 1"),
        ("{\"schema\": 1}".to_owned(), "missing field `target`"),
        (text.replace("h200", "v100"), "unknown target `v100`, known are h200"),
        (text.replace("\"date\"", "\"day\""), "unknown field `day`"),
        (with(short), "entry 2 (family `map`): region `12` is not 32 hexadecimal digits"),
        (with(upper), "source `AAAA"),
        (with(plain("sin", "a", -1.0)), "time_us is -1"),
        (with(plain("sin", "a", 1e10)), "not between 0 and 1e9"),
        (with(plain("add", "a", 1.0)), "has the region and the schedule of entry 1"),
    ] {
        let error = TuningDatabase::parse(&text).unwrap_err().to_string();
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
}
