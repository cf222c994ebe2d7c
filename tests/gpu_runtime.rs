//! The CUDA runtime on a real device, with a plan written by hand.
//!
//! Without a device each test prints one line that says it is skipped; with `HYENAC_REQUIRE_GPU=1` it fails instead.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyenac::runtime::cuda::{
    Arguments, BindOptions, Cache, Case, CudaDevice, CudaError, CudaExecutable, CudaMembers, DeviceBuffer,
    DevicePointer, DeviceWeights, SharedArena, Timer, bytes_needed, upload_weights,
};
use hyenac_kernels::{Argument, Buffer, Device, KernelSource, Launch, Mode, Place, Plan};

/// The device, for one test at a time: some of them watch its free memory.
fn device() -> Option<(CudaDevice, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Some((CudaDevice::for_tests()?, alone))
}

/// Elements of a tensor of [`plan`] for `blocks` blocks of 256 threads.
fn elements(blocks: u32) -> usize {
    blocks as usize * 256
}

/// `y = x * f + bias`, where `f` is `2 w`, through the arena: a launch scales, the next adds. Frozen, `f` comes from a
/// set-up launch that goes through the set-up arena; live, both launches are in the graph.
fn plan(blocks: u32, mode: Mode) -> Plan {
    let bytes = elements(blocks) as u64 * 4;
    let kernel = |name: &str, parameters: &str, body: &str| KernelSource {
        name: name.to_owned(),
        source: format!(
            "extern \"C\" __global__ void {name}({parameters}) {{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    {body}\n}}\n"
        ),
    };
    let buffer =
        |name: &str, place: Place| Buffer { name: name.to_owned(), ty: format!("f32[{}]", bytes / 4), bytes, place };
    let launch = |kernel: usize, shared_bytes: u32, arguments: &[(usize, bool)], after: &[usize]| Launch {
        kernel,
        grid: [blocks, 1, 1],
        block: [256, 1, 1],
        shared_bytes,
        arguments: arguments.iter().map(|&(buffer, writes)| Argument { buffer, offset: 0, writes }).collect(),
        after: after.to_vec(),
        early: Vec::new(),
        family: "hand".to_owned(),
        schedule: String::new(),
        predicted_us: 0.0,
        floor_us: 0.0,
        computes: String::new(),
    };
    let frozen = mode == Mode::Frozen;
    let setup = [launch(0, 0, &[(0, false), (4, true)], &[]), launch(1, 0, &[(4, false), (5, true)], &[0])];
    let mut launches = vec![
        // More dynamic shared memory than a kernel gets without asking.
        launch(2, 64 * 1024, &[(2, false), (5, false), (6, true)], if frozen { &[] } else { &[1] }),
        launch(3, 0, &[(6, false), (1, false), (3, true)], if frozen { &[0] } else { &[2] }),
    ];
    if !frozen {
        launches.splice(0..0, setup.clone());
    }
    let (doubled, factor) =
        if frozen { (Place::SetupArena(0), Place::Frozen(0)) } else { (Place::Arena(bytes), Place::Arena(2 * bytes)) };
    Plan {
        device: Device::a100(),
        kernels: vec![
            kernel("negate", "const float* w, float* d", "d[i] = -w[i];"),
            kernel("factor", "const float* d, float* f", "f[i] = -2.0f * d[i];"),
            kernel(
                "scale",
                "const float* x, const float* f, float* t",
                "extern __shared__ float s[]; s[threadIdx.x * 64] = x[i]; __syncthreads(); t[i] = s[threadIdx.x * 64] * f[i];",
            ),
            kernel("add", "const float* t, const float* b, float* y", "y[i] = t[i] + b[i];"),
        ],
        buffers: vec![
            buffer("w", Place::Weight("w".to_owned())),
            buffer("bias", Place::Weight("bias".to_owned())),
            buffer("x", Place::Input("x".to_owned())),
            buffer("y", Place::Output(0)),
            buffer("d", doubled),
            buffer("f", factor),
            buffer("t", Place::Arena(0)),
        ],
        setup: if frozen { setup.to_vec() } else { Vec::new() },
        launches,
        arena_bytes: if frozen { bytes } else { 3 * bytes },
        frozen_bytes: if frozen { bytes } else { 0 },
        setup_arena_bytes: if frozen { bytes } else { 0 },
        largest_live_bytes: bytes,
    }
}

/// Distinct values that add and multiply exactly.
fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + seed * 13) % 101) as f32 - 50.0).collect()
}

fn weights(count: usize) -> BTreeMap<String, Vec<f32>> {
    BTreeMap::from([("w".to_owned(), values(count, 1)), ("bias".to_owned(), values(count, 2))])
}

fn expected(x: &[f32], weights: &BTreeMap<String, Vec<f32>>) -> Vec<f32> {
    let (w, bias) = (&weights["w"], &weights["bias"]);
    x.iter().zip(w).zip(bias).map(|((x, w), bias)| x * (2.0 * w) + bias).collect()
}

fn bind(device: &CudaDevice, blocks: u32, mode: Mode, arena: Option<Arc<SharedArena>>) -> CudaExecutable {
    let plan = plan(blocks, mode);
    let weights = upload_weights(device, &plan, &weights(elements(blocks))).unwrap();
    let options = BindOptions { mode, arena, cache: Cache::disabled() };
    CudaExecutable::bind(device, Arc::new(plan), weights, options).unwrap()
}

#[test]
fn both_modes_compute_and_the_graph_is_the_plan() {
    let Some((device, _alone)) = device() else { return };
    for mode in [Mode::Live, Mode::Frozen] {
        let mut executable = bind(&device, 8, mode, None);
        executable.verify_against_plan().unwrap();
        let graph = executable.read_back().unwrap();
        let launches = executable.plan().launches.len();
        assert_eq!((executable.node_count(), graph.nodes.len(), graph.edges.len()), (launches, launches, launches - 1));
        assert_eq!(graph.nodes[launches - 2].shared_bytes, 64 * 1024);
        for seed in 3..6 {
            let x = values(elements(8), seed);
            assert_eq!(executable.run(&[&x]).unwrap(), [expected(&x, &weights(elements(8)))], "{mode:?}");
        }
    }
}

#[test]
fn pointers_change_without_a_new_graph_and_memory_stays_as_it_is() {
    let Some((device, _alone)) = device() else { return };
    let count = elements(8);
    let mut executable = bind(&device, 8, Mode::Frozen, None);
    let stream = device.new_stream().unwrap();
    let inputs: Vec<Vec<f32>> = (0..3).map(|seed| values(count, seed)).collect();
    let on_device: Vec<DeviceBuffer> =
        inputs.iter().map(|x| DeviceBuffer::from_f32(&device, x, "x").unwrap()).collect();
    let results: Vec<DeviceBuffer> =
        (0..3).map(|_| DeviceBuffer::allocate(&device, count as u64 * 4, "y").unwrap()).collect();
    results.iter().for_each(|result| result.poison(&stream).unwrap());
    // The first replay may load code lazily.
    executable.launch(&[on_device[0].pointer()], &[results[0].pointer()], &stream).unwrap();
    device.synchronize().unwrap();
    let free = device.free_bytes().unwrap();
    let nodes = executable.node_count();
    for replay in 0..10_000 {
        let turn = replay % 3;
        executable.launch(&[on_device[turn].pointer()], &[results[turn].pointer()], &stream).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(device.free_bytes().unwrap(), free, "replays allocate nothing");
    assert_eq!(executable.node_count(), nodes);
    executable.verify_against_plan().unwrap();
    for (x, result) in inputs.iter().zip(&results) {
        assert_eq!(result.read_f32(&stream).unwrap(), expected(x, &weights(count)));
    }
}

#[test]
fn a_result_that_is_held_is_not_overwritten() {
    let Some((device, _alone)) = device() else { return };
    let count = elements(4);
    let mut executable = bind(&device, 4, Mode::Live, None);
    let stream = device.new_stream().unwrap();
    let inputs: Vec<Vec<f32>> = (0..4).map(|seed| values(count, seed)).collect();
    let on_device: Vec<DeviceBuffer> =
        inputs.iter().map(|x| DeviceBuffer::from_f32(&device, x, "x").unwrap()).collect();
    let held: Vec<Arc<DeviceBuffer>> =
        on_device.iter().flat_map(|x| executable.run_device(&[x.pointer()], &stream).unwrap()).collect();
    for (x, y) in inputs.iter().zip(&held) {
        assert_eq!(y.read_f32(&stream).unwrap(), expected(x, &weights(count)));
    }
    let bytes = executable.device_bytes();
    drop(held);
    executable.run_device(&[on_device[0].pointer()], &stream).unwrap();
    assert_eq!(executable.device_bytes(), bytes, "free results are used again");
}

#[test]
fn live_weights_are_replaced_and_frozen_ones_are_not() {
    let Some((device, _alone)) = device() else { return };
    let count = elements(4);
    let x = values(count, 9);
    let mut other = weights(count);
    other.insert("bias".to_owned(), values(count, 77));
    let bias: DeviceWeights = BTreeMap::from([(
        "bias".to_owned(),
        Arc::new(DeviceBuffer::from_f32(&device, &other["bias"], "bias").unwrap()),
    )]);
    let mut live = bind(&device, 4, Mode::Live, None);
    assert_eq!(live.run(&[&x]).unwrap(), [expected(&x, &weights(count))]);
    live.set_weights(&bias).unwrap();
    assert_eq!(live.run(&[&x]).unwrap(), [expected(&x, &other)]);
    let mut frozen = bind(&device, 4, Mode::Frozen, None);
    assert_eq!(frozen.set_weights(&bias), Err(CudaError::FrozenWeights));
    // Frozen, `w` is freed after bind: arena, frozen memory and `bias` stay.
    assert_eq!(frozen.device_bytes(), bytes_needed(&plan(4, Mode::Frozen), false).unwrap());
}

#[test]
fn wrong_calls_are_refused() {
    let Some((device, _alone)) = device() else { return };
    let bytes = elements(4) as u64 * 4;
    let mut executable = bind(&device, 4, Mode::Live, None);
    let stream = device.new_stream().unwrap();
    let x = DeviceBuffer::allocate(&device, bytes + 16, "x").unwrap();
    let y = DeviceBuffer::allocate(&device, bytes, "y").unwrap();
    // SAFETY: within `x`, which outlives the calls.
    let within = |offset: u64, bytes: u64| unsafe { DevicePointer::from_raw(x.pointer().address() + offset, bytes) };
    let mut launch = |inputs: &[DevicePointer<'_>], output| executable.launch(inputs, &[output], &stream);
    assert!(matches!(launch(&[], y.pointer()), Err(CudaError::TensorCount { expected: 1, got: 0, .. })));
    assert!(matches!(launch(&[x.pointer()], y.pointer()), Err(CudaError::TensorSize { .. })));
    assert!(matches!(launch(&[within(4, bytes)], y.pointer()), Err(CudaError::Misaligned { .. })));
    assert!(matches!(launch(&[within(0, bytes)], within(16, bytes)), Err(CudaError::Overlap { .. })));
    launch(&[within(0, bytes)], y.pointer()).unwrap();
    stream.synchronize().unwrap();
    assert!(matches!(executable.run(&[&[0.0; 3]]), Err(CudaError::TensorSize { .. })));

    let free = device.free_bytes().unwrap();
    match DeviceBuffer::allocate(&device, u64::MAX / 2, "everything") {
        Err(CudaError::OutOfMemory { needed, free: reported, .. }) => {
            assert_eq!(needed, u64::MAX / 2);
            assert!(reported <= free + (1 << 30));
        }
        other => panic!("{:?}", other.err()),
    }
    let mut newer = plan(4, Mode::Live);
    newer.device.arch = "sm_999".to_owned();
    let refused = CudaExecutable::new(&device, &newer, &weights(elements(4)), Mode::Live);
    assert!(matches!(refused.err(), Some(CudaError::WrongArchitecture { .. })));
    let mut parameters = plan(4, Mode::Live);
    parameters.launches[0].arguments.pop();
    let refused = CudaExecutable::new(&device, &parameters, &weights(elements(4)), Mode::Live);
    assert!(matches!(refused.err(), Some(CudaError::InvalidPlan { .. })));
    let mut large = plan(4, Mode::Live);
    large.launches[2].shared_bytes = 1 << 20;
    let refused = CudaExecutable::new(&device, &large, &weights(elements(4)), Mode::Live);
    assert!(matches!(refused.err(), Some(CudaError::LaunchLimit { .. })));
    let refused = CudaExecutable::new(&device, &plan(4, Mode::Live), &BTreeMap::new(), Mode::Live);
    assert_eq!(refused.err(), Some(CudaError::MissingWeight { name: "w".to_owned() }));
}

#[test]
fn members_share_an_arena_that_grows_without_moving() {
    let Some((device, _alone)) = device() else { return };
    let arena = SharedArena::reserve(&device, 1 << 30).unwrap();
    let mut small = bind(&device, 4, Mode::Live, Some(Arc::clone(&arena)));
    let before = arena.mapped_bytes();
    // Larger than what one piece holds, so that a second one is mapped.
    let blocks = 64 * 1024;
    let mut large = bind(&device, blocks, Mode::Live, Some(Arc::clone(&arena)));
    assert!(arena.mapped_bytes() > before && before > 0);
    let (short, long) = (values(elements(4), 5), values(elements(blocks), 6));
    let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
    let inputs =
        [DeviceBuffer::from_f32(&device, &short, "x").unwrap(), DeviceBuffer::from_f32(&device, &long, "x").unwrap()];
    // On two streams: the arena's owner has to serialise them.
    for _ in 0..20 {
        let y = large.run_device(&[inputs[1].pointer()], &streams[1]).unwrap();
        let z = small.run_device(&[inputs[0].pointer()], &streams[0]).unwrap();
        assert_eq!(z[0].read_f32(&streams[0]).unwrap(), expected(&short, &weights(elements(4))));
        assert!(y[0].read_f32(&streams[1]).unwrap() == expected(&long, &weights(elements(blocks))));
    }
    let huge = bytes_needed(&plan(1 << 20, Mode::Live), false).unwrap();
    assert!(huge > 1 << 30);
    let refused = CudaExecutable::bind(
        &device,
        Arc::new(plan(1 << 20, Mode::Live)),
        BTreeMap::new(),
        BindOptions { mode: Mode::Live, arena: Some(arena), cache: Cache::disabled() },
    );
    assert!(refused.is_err());
}

#[test]
fn executables_are_kept_by_case_within_a_budget() {
    let Some((device, _alone)) = device() else { return };
    let count = elements(4);
    let mut members = CudaMembers::new(&device, weights(count), Mode::Frozen, Cache::disabled(), 1 << 20).unwrap();
    let case = |batch| Case { batch, seq_len: count };
    let x = values(count, 4);
    let mut plans = 0;
    for batch in [1, 2, 1] {
        let executable = members
            .executable(case(batch), || {
                plans += 1;
                Ok::<_, CudaError>(plan(4, Mode::Frozen))
            })
            .unwrap();
        assert_eq!(executable.run(&[&x]).unwrap(), [expected(&x, &weights(count))]);
    }
    assert_eq!(plans, 2, "the third call finds the first executable");
    assert_eq!(members.cases().collect::<Vec<_>>(), [case(2), case(1)]);
    assert!(members.arena_bytes() > 0);
}

#[test]
fn an_executable_moves_to_another_thread() {
    let Some((device, _alone)) = device() else { return };
    let mut executable = bind(&device, 4, Mode::Frozen, None);
    let x = values(elements(4), 8);
    let expected = expected(&x, &weights(elements(4)));
    let result = std::thread::spawn(move || executable.run(&[&x])).join().unwrap();
    assert_eq!(result.unwrap(), [expected]);
}

#[test]
fn times_are_measured() {
    let Some((device, _alone)) = device() else { return };
    let count = elements(64);
    let mut executable = bind(&device, 64, Mode::Live, None);
    let mut timer = Timer::new(&device).unwrap();
    let x = DeviceBuffer::from_f32(&device, &values(count, 1), "x").unwrap();
    let outputs: Vec<DeviceBuffer> =
        (0..2).map(|_| DeviceBuffer::allocate(&device, count as u64 * 4, "y").unwrap()).collect();
    let inputs = [x.pointer()];
    let outputs: Vec<[DevicePointer<'_>; 1]> = outputs.iter().map(|output| [output.pointer()]).collect();
    let turns: Vec<Arguments<'_>> = outputs.iter().map(|outputs| Arguments { inputs: &inputs, outputs }).collect();
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let empty = median(timer.empty_graph_us(50, true).unwrap());
    let whole = median(timer.time_replays(&mut executable, turns[0], 50, true).unwrap());
    let hot = timer.hot_us(&mut executable, turns[0], 200).unwrap();
    let launches = timer.time_launches(&mut executable, turns[0], 20).unwrap();
    let same = timer.host_us(&mut executable, &turns[..1], 500).unwrap();
    let alternating = timer.host_us(&mut executable, &turns, 500).unwrap();
    println!("empty {empty:.2} whole {whole:.2} hot {hot:.2} host {same:.2} alternating {alternating:.2} us");
    assert_eq!(launches.len(), 4);
    assert!(launches.iter().all(|times| times.len() == 20 && times.iter().all(|&time| time > 0.0)));
    // Four launches in a row take longer than one that does nothing, and less than a millisecond.
    assert!(0.0 < empty && empty < whole && whole < 1000.0, "{empty} {whole}");
    assert!(hot > 0.0 && same > 0.0 && alternating > 0.0);
}
