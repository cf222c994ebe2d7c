//! Plans for a GPU keep their precision's promise: evaluated with the roundings they chose, on trained-like
//! inputs, they stay within the bar against float64. What is left to the GPU is the order of its sums.

use hyenac::check::{Comparison, IEEE_BAR, MIXED_BAR};
use hyenac::inputs::{Distribution, Inputs, generate};
use hyenac::{BlockConfig, CompileOptions, DeviceChoice, Executable, Precision, compile};
use hyenac_ir::{DType, Op};

const SHAPES: [(usize, usize); 4] = [(1, 1), (1, 131), (2, 512), (1, 2053)];

fn compare(config: &BlockConfig, options: &CompileOptions) -> Comparison {
    let (batch, seq_len) = (options.batch, options.seq_len);
    let Inputs { block, hidden_states } = generate(Distribution::Trained, config, batch, seq_len, 3).unwrap();
    let compilation = compile(config, options).unwrap();
    let mut executable = Executable::build(&compilation, &block, DeviceChoice::Cpu).unwrap();
    let found = executable.run(&hidden_states).unwrap();
    Comparison::of(&found, &block.reference(&hidden_states, batch, seq_len).unwrap())
}

fn presets() -> [BlockConfig; 2] {
    [BlockConfig::benchmark(), BlockConfig::hyenadna()]
}

#[test]
fn mixed_plans_stay_within_the_bar() {
    for config in presets() {
        for (batch, seq_len) in SHAPES {
            let comparison = compare(&config, &CompileOptions::new(batch, seq_len));
            assert!(comparison.within(MIXED_BAR), "{batch}x{seq_len} {config:?}: {comparison:?}");
            // The plan does round: a bar that nothing approaches would prove nothing.
            assert!(comparison.rel_l2_err > MIXED_BAR / 20.0, "{batch}x{seq_len}: {comparison:?}");
        }
    }
}

#[test]
fn ieee_plans_stay_within_the_bar_and_round_nothing() {
    for config in presets() {
        for (batch, seq_len) in SHAPES {
            let options = CompileOptions { precision: Precision::Ieee, ..CompileOptions::new(batch, seq_len) };
            let comparison = compare(&config, &options);
            assert!(comparison.within(IEEE_BAR), "{batch}x{seq_len} {config:?}: {comparison:?}");
            let graph = compile(&config, &options).unwrap().optimized;
            for node in graph.nodes() {
                let Op::Region(region) = &graph.node(node).op else { continue };
                for inner in region.body().nodes() {
                    for ty in &region.body().node(inner).types {
                        assert!(matches!(ty.dtype, DType::F32 | DType::C64), "{ty} in {}", region.describe());
                    }
                }
            }
        }
    }
}
