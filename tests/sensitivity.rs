//! Every term of the output matters: losing any of them moves a trained-like output by more than three times
//! the widest error bar, so that no kernel that skips one passes a check.

use std::collections::BTreeMap;

use hyenac::check::MIXED_BAR;
use hyenac::inputs::{Distribution, Inputs, generate};
use hyenac::{BlockConfig, HyenaBlock};
use hyenac_ir::{Graph, NodeIndex, Op, Rounding, Tensor, Value, evaluate};

const SHAPES: [(usize, usize); 2] = [(1, 131), (2, 512)];

struct Case {
    name: String,
    graph: Graph,
    tensors: BTreeMap<String, Tensor<f64>>,
    output: Tensor<f64>,
}

impl Case {
    fn new(name: &str, config: BlockConfig, batch: usize, seq_len: usize) -> Case {
        let Inputs { block, hidden_states } = generate(Distribution::Trained, &config, batch, seq_len, 11).unwrap();
        let graph = config.reference_graph(batch, seq_len).unwrap();
        let tensors = HyenaBlock::tensors(&block, &hidden_states, batch, seq_len).unwrap();
        let output = run(&graph, &tensors);
        Case { name: format!("{name} {batch}x{seq_len}"), graph, tensors, output }
    }

    fn all() -> impl Iterator<Item = Case> {
        let presets = [("benchmark", BlockConfig::benchmark()), ("hyenadna", BlockConfig::hyenadna())];
        // Positions over a length near the sequence's, so that the decay spans what is tested.
        presets.into_iter().flat_map(|(name, preset)| {
            SHAPES.map(|(batch, seq_len)| Case::new(name, BlockConfig { l_max: 1024, ..preset }, batch, seq_len))
        })
    }

    fn must_notice(&self, what: &str, changed: &Tensor<f64>) {
        let moved = changed.relative_l2(&self.output);
        let noticed = 3.0 * MIXED_BAR;
        assert!(moved > noticed, "{}: {what} moves the output by only {moved:.1e}, not {noticed:.0e}", self.name);
    }
}

fn run(graph: &Graph, tensors: &BTreeMap<String, Tensor<f64>>) -> Tensor<f64> {
    evaluate(graph, tensors, Rounding::Exact).unwrap().remove(0)
}

/// The graph with every node for which `replace` names one of its operands replaced by that operand.
fn without(graph: &Graph, replace: impl Fn(&Graph, NodeIndex) -> Option<usize>) -> (Graph, usize) {
    let mut copy = Graph::new();
    let mut image: Vec<Value> = Vec::new();
    let mut replaced = 0;
    for node in graph.nodes() {
        let operands: Vec<Value> = graph.operands(node).iter().map(|operand| image[operand.node.index()]).collect();
        image.push(match replace(graph, node) {
            Some(operand) => {
                replaced += 1;
                operands[operand]
            }
            None => copy.add(graph.node(node).op.clone(), &operands).unwrap(),
        });
    }
    for output in graph.outputs() {
        copy.add_output(image[output.node.index()]);
    }
    (copy, replaced)
}

#[test]
fn losing_any_weight_is_noticed() {
    for case in Case::all() {
        for (name, _) in BlockConfig::benchmark().weights() {
            let mut tensors = case.tensors.clone();
            tensors.get_mut(name).unwrap().data.fill(0.0);
            case.must_notice(&format!("zeroing {name}"), &run(&case.graph, &tensors));
        }
    }
}

#[test]
fn losing_any_tap_of_the_halo_is_noticed() {
    for case in Case::all() {
        for tap in 0..3 {
            let mut tensors = case.tensors.clone();
            let taps = tensors.get_mut("short_conv_weight").unwrap();
            taps.data.iter_mut().skip(tap).step_by(3).for_each(|weight| *weight = 0.0);
            case.must_notice(&format!("zeroing tap {tap}"), &run(&case.graph, &tensors));
        }
    }
}

#[test]
fn losing_any_term_is_noticed() {
    let is = |graph: &Graph, value: Value, mnemonic: &str| graph.op(value).mnemonic() == mnemonic;
    let operand = |graph: &Graph, node: NodeIndex, position: usize| graph.operand(node, position);
    // What is dropped, and which operand stands for the node when it is.
    type Replace = Box<dyn Fn(&Graph, NodeIndex) -> Option<usize>>;
    let binary = move |mnemonic: &'static str, first: &'static str, second: &'static str, keep: usize| -> Replace {
        Box::new(move |graph: &Graph, node: NodeIndex| {
            let fits = graph.node(node).op.mnemonic() == mnemonic
                && is(graph, operand(graph, node, 0), first)
                && is(graph, operand(graph, node, 1), second);
            fits.then_some(keep)
        })
    };
    let drops: Vec<(&str, usize, Replace)> = vec![
        ("the skip term", 1, binary("add", "long_conv", "mul", 0)),
        ("the long convolution", 1, binary("add", "long_conv", "mul", 1)),
        ("the decay", 1, binary("mul", "linear", "add", 0)),
        ("the decay's shift", 1, binary("add", "exp", "scalar", 0)),
        ("the decay's exponential", 1, binary("add", "exp", "scalar", 1)),
        ("the gate before the convolution", 1, binary("mul", "slice", "slice", 0)),
        ("the gate after the convolution", 1, binary("mul", "add", "slice", 0)),
        ("the mixer's residual", 1, binary("add", "add", "input", 0)),
        ("the MLP's residual", 1, binary("add", "add", "add", 0)),
        ("the GELU", 1, Box::new(|graph, node| matches!(graph.node(node).op, Op::GeluTanh {}).then_some(0))),
        (
            "the short convolution",
            1,
            Box::new(|graph, node| matches!(graph.node(node).op, Op::ShortConv {}).then_some(0)),
        ),
        ("the norms", 2, Box::new(|graph, node| matches!(graph.node(node).op, Op::LayerNorm { .. }).then_some(0))),
        (
            "the filter network's sines",
            3,
            Box::new(|graph, node| matches!(graph.node(node).op, Op::Sin {}).then_some(0)),
        ),
    ];
    for case in Case::all() {
        for (what, count, replace) in &drops {
            let (graph, replaced) = without(&case.graph, replace);
            assert_eq!(replaced, *count, "{}: {what} was not found in the reference graph", case.name);
            case.must_notice(&format!("dropping {what}"), &run(&graph, &case.tensors));
        }
    }
}
