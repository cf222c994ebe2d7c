use hyenac_ir::{Binding, DType, Region};

use super::*;
use crate::testing::{Body, block_head, block_tail, packing};

fn elementwise(op: Op, shapes: &[&[usize]], binding: Binding) -> Region {
    let mut body = Graph::new();
    let operands: Vec<Value> = shapes
        .iter()
        .enumerate()
        .map(|(index, shape)| {
            let op = Op::Parameter { index, dtype: DType::F32, shape: shape.to_vec(), binding };
            body.add(op, &[]).unwrap()
        })
        .collect();
    let output = body.add(op, &operands).unwrap();
    body.add_output(output);
    Region::new(body)
}

/// y = (x + |w|) + sin(x + |w|)
fn graph() -> Graph {
    let mut graph = Graph::new();
    let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![4, 8] }, &[]).unwrap();
    let w = graph.add(Op::Weight { name: "w".into(), dtype: DType::F32, shape: vec![8] }, &[]).unwrap();
    let rate = graph.add_region(elementwise(Op::Abs {}, &[&[8]], Binding::Weights), &[w]).unwrap();
    let sum =
        graph.add_region(elementwise(Op::Add {}, &[&[4, 8], &[8]], Binding::Input), &[x, Value::of(rate)]).unwrap();
    let sine = graph.add_region(elementwise(Op::Sin {}, &[&[4, 8]], Binding::Input), &[Value::of(sum)]).unwrap();
    let y = graph
        .add_region(elementwise(Op::Add {}, &[&[4, 8], &[4, 8]], Binding::Input), &[Value::of(sum), Value::of(sine)])
        .unwrap();
    graph.add_output(Value::of(y));
    graph
}

#[test]
fn live_weights_are_computed_with_every_call() {
    let plan = lower(&graph(), &Device::h200(), Mode::Live).unwrap();
    assert_eq!((plan.setup.len(), plan.launches.len()), (0, 4));
    let after: Vec<&[usize]> = plan.launches.iter().map(|launch| &launch.after[..]).collect();
    assert_eq!(after, [&[][..], &[0], &[1], &[1, 2]]);
}

#[test]
fn frozen_weights_move_what_depends_on_them_alone_to_the_setup() {
    let plan = lower(&graph(), &Device::h200(), Mode::Frozen).unwrap();
    assert_eq!((plan.setup.len(), plan.launches.len()), (1, 3));
    let written = plan.setup[0].arguments.iter().find(|argument| argument.writes).unwrap().buffer;
    assert_eq!(plan.buffers[written].place, Place::Frozen(0));
    assert!(plan.launches[0].after.is_empty());
}

#[test]
fn the_result_goes_to_the_callers_memory_and_the_rest_to_the_arena() {
    let plan = lower(&graph(), &Device::h200(), Mode::Live).unwrap();
    let places: Vec<&Place> =
        plan.launches.iter().map(|l| &plan.buffers[l.arguments.last().unwrap().buffer].place).collect();
    assert_eq!(*places[3], Place::Output(0));
    assert!(places[..3].iter().all(|place| matches!(place, Place::Arena(_))));
    assert_eq!(plan.arena_bytes, plan.largest_live_bytes);
}

#[test]
fn a_graph_begins_with_one_launch() {
    let mut graph = Graph::new();
    let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![4096, 512] }, &[]).unwrap();
    let w = graph.add(Op::Weight { name: "w".into(), dtype: DType::F32, shape: vec![512] }, &[]).unwrap();
    let large = graph.add_region(elementwise(Op::Sin {}, &[&[4096, 512]], Binding::Input), &[x]).unwrap();
    let small = graph.add_region(elementwise(Op::Abs {}, &[&[512]], Binding::Weights), &[w]).unwrap();
    let y = graph
        .add_region(
            elementwise(Op::Add {}, &[&[4096, 512], &[512]], Binding::Input),
            &[Value::of(large), Value::of(small)],
        )
        .unwrap();
    graph.add_output(Value::of(y));
    let plan = lower(&graph, &Device::h200(), Mode::Live).unwrap();
    assert_eq!(plan.launches[0].computes, "abs");
    let after: Vec<&[usize]> = plan.launches.iter().map(|launch| &launch.after[..]).collect();
    assert_eq!(after, [&[][..], &[0], &[0, 1]]);
}

#[test]
fn maps_of_live_weights_are_one_launch() {
    let mut graph = Graph::new();
    let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![8] }, &[]).unwrap();
    let mut sum = x;
    for name in ["v", "w"] {
        let w = graph.add(Op::Weight { name: name.into(), dtype: DType::F32, shape: vec![8] }, &[]).unwrap();
        let w = graph.add_region(elementwise(Op::Abs {}, &[&[8]], Binding::Weights), &[w]).unwrap();
        let add = elementwise(Op::Add {}, &[&[8], &[8]], Binding::Input);
        sum = Value::of(graph.add_region(add, &[sum, Value::of(w)]).unwrap());
    }
    graph.add_output(sum);
    let live = lower(&graph, &Device::h200(), Mode::Live).unwrap();
    assert_eq!(live.launches[0].computes, "abs; abs");
    assert_eq!(live.launches[0].arguments.len(), 4);
    let after: Vec<&[usize]> = live.launches.iter().map(|launch| &launch.after[..]).collect();
    assert_eq!(after, [&[][..], &[0], &[0, 1]]);
    assert_eq!(lower(&graph, &Device::h200(), Mode::Frozen).unwrap().setup.len(), 2);
}

#[test]
fn equal_kernels_are_emitted_once() {
    let mut graph = Graph::new();
    let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![8] }, &[]).unwrap();
    let first = graph.add_region(elementwise(Op::Sin {}, &[&[8]], Binding::Input), &[x]).unwrap();
    let second = graph.add_region(elementwise(Op::Sin {}, &[&[8]], Binding::Input), &[Value::of(first)]).unwrap();
    graph.add_output(Value::of(second));
    let plan = lower(&graph, &Device::h200(), Mode::Live).unwrap();
    assert_eq!((plan.kernels.len(), plan.launches.len()), (1, 2));
}

#[test]
fn elementary_ops_outside_regions_are_refused() {
    let mut graph = Graph::new();
    let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![8] }, &[]).unwrap();
    let y = graph.add(Op::Sin {}, &[x]).unwrap();
    graph.add_output(y);
    assert!(matches!(lower(&graph, &Device::h200(), Mode::Live), Err(LowerError::Ir(_))));
}

fn given(graph: &mut Graph, weight: bool, shape: &[usize]) -> Value {
    let (name, shape) = (format!("given{}", graph.nodes().count()), shape.to_vec());
    let op = match weight {
        true => Op::Weight { name, dtype: DType::F32, shape },
        false => Op::Input { name, dtype: DType::F32, shape },
    };
    graph.add(op, &[]).unwrap()
}

/// A norm and the projection behind it, something made of its rows, and the tail: weights are packed with every call.
fn head_and_tail(length: usize) -> Graph {
    const WIDTH: usize = 256;
    const HIDDEN: usize = 1024;
    let mut graph = Graph::new();
    let x = given(&mut graph, false, &[1, length, WIDTH]);
    let packed = |graph: &mut Graph, n: usize, k: usize| {
        let weight = given(graph, true, &[n, k]);
        Value::of(graph.add_region(packing(n, k), &[weight]).unwrap())
    };
    let rows = |graph: &mut Graph, length: usize| given(graph, true, &[length]);
    let operands = [
        x,
        rows(&mut graph, WIDTH),
        rows(&mut graph, WIDTH),
        packed(&mut graph, 3 * WIDTH, WIDTH),
        rows(&mut graph, 3 * WIDTH),
    ];
    let q = graph.add_region(block_head(1, length, WIDTH, 3 * WIDTH), &operands).unwrap();
    let mut body = Body::default();
    let y = body.parameter(DType::F16, &[1, 3 * WIDTH, length]);
    let y = body.op(Op::Slice { axis: 1, start: 0, length: WIDTH }, &[y]);
    let y = body.op(Op::Neg {}, &[y]);
    let y = body.op(Op::Cast { dtype: DType::F16 }, &[y]);
    let y = graph.add_region(body.region(y), &[Value::of(q)]).unwrap();
    let operands = [
        Value::of(y),
        packed(&mut graph, WIDTH, WIDTH),
        rows(&mut graph, WIDTH),
        x,
        rows(&mut graph, WIDTH),
        rows(&mut graph, WIDTH),
        packed(&mut graph, HIDDEN, WIDTH),
        rows(&mut graph, HIDDEN),
        packed(&mut graph, WIDTH, HIDDEN),
        rows(&mut graph, WIDTH),
    ];
    let out = graph.add_region(block_tail(1, length, WIDTH, HIDDEN), &operands).unwrap();
    graph.add_output(Value::of(out));
    graph
}

#[test]
fn launches_begin_early_where_they_read_late() {
    let plan = lower(&head_and_tail(256), &Device::h200(), Mode::Live).unwrap();
    let about = |launch: &Launch| (launch.family.clone(), launch.after.clone(), launch.early.clone());
    let launches: Vec<_> = plan.launches.iter().map(about).collect();
    let of = |family: &str, after: &[usize], early: &[usize]| (family.to_owned(), after.to_vec(), early.to_vec());
    let expected = [
        // All four packings.
        of("map", &[], &[]),
        // Its packed weight comes late.
        of("panel", &[0], &[0]),
        // Never waits.
        of("map", &[1], &[]),
        // Its packed weights come before it waits, its rows after that.
        of("tail", &[0, 2], &[2]),
    ];
    assert_eq!(launches, expected);
}

#[test]
fn launches_do_not_begin_early_where_that_gains_nothing() {
    // The clusters of a large tail would be placed into gaps.
    let plan = lower(&head_and_tail(4096), &Device::h200(), Mode::Live).unwrap();
    let tail = plan.launches.last().unwrap();
    assert_eq!((&tail.family[..], &tail.after[..], &tail.early[..]), ("tail", &[0, 2][..], &[][..]));
    // Weights that are packed beforehand are nothing to wait for.
    let plan = lower(&head_and_tail(256), &Device::h200(), Mode::Frozen).unwrap();
    assert!(plan.setup.iter().all(|launch| launch.early.is_empty()));
    let early: Vec<&[usize]> = plan.launches.iter().map(|launch| &launch.early[..]).collect();
    assert_eq!(early, [&[][..], &[], &[1]]);
}

#[test]
fn what_is_put_behind_the_opener_only_to_come_later_begins_early() {
    let mut graph = Graph::new();
    let (x, v) = (given(&mut graph, false, &[64, 64]), given(&mut graph, true, &[64, 64]));
    let mut body = Body::default();
    let (a, b) = (body.parameter(DType::F32, &[64, 64]), body.parameter(DType::F32, &[64, 64]));
    let product = body.op(Op::Linear {}, &[a, b]);
    let product = graph.add_region(body.region(product), &[x, v]).unwrap();
    let w = given(&mut graph, true, &[64]);
    let rate = graph.add_region(elementwise(Op::Abs {}, &[&[64]], Binding::Weights), &[w]).unwrap();
    let sum = elementwise(Op::Add {}, &[&[64, 64], &[64]], Binding::Input);
    let sum = graph.add_region(sum, &[Value::of(product), Value::of(rate)]).unwrap();
    graph.add_output(Value::of(sum));
    // Launches of the other device do not overlap.
    for (device, early) in [(Device::h200(), &[0][..]), (Device::a100(), &[])] {
        let plan = lower(&graph, &device, Mode::Live).unwrap();
        let product = &plan.launches[1];
        assert_eq!((&product.family[..], &product.after[..], &product.early[..]), ("gemm", &[0][..], early));
    }
}

#[test]
fn every_kernel_that_waits_or_calls_says_so() {
    for length in [256, 4096] {
        let plan = lower(&head_and_tail(length), &Device::h200(), Mode::Live).unwrap();
        for launch in &plan.launches {
            assert!(launch.early.iter().all(|early| launch.after.contains(early)));
            let source = |launch: &Launch| &plan.kernels[launch.kernel].source;
            assert!(launch.early.is_empty() || source(launch).contains(" wait_for_inputs();"));
            assert!(launch.early.iter().all(|&early| source(&plan.launches[early]).contains(" begin_next();")));
        }
    }
}
