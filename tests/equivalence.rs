//! Whatever the extraction chooses means what the reference graph means: on random configurations, in float64
//! with casts as the identity, both graphs have the same values.

use hyenac::inputs::{Distribution, generate};
use hyenac::target::Machine;
use hyenac::{BlockConfig, CompileOptions, FilterLayout, Fuse, HyenaBlock, Mode, Positions, Precision, compile};
use hyenac_ir::{Rounding, Tensor, evaluate};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

/// Configurations that are tried. Each is drawn from its number alone, so that a failure is repeated by it.
const CONFIGURATIONS: u64 = 200;
/// The largest difference that float64 arithmetic in another order may make.
const BAR: f64 = 1e-9;

/// A small random block and how it is compiled.
fn draw(number: u64) -> (BlockConfig, CompileOptions) {
    let mut random = ChaCha8Rng::seed_from_u64(number);
    let l_max = random.random_range(1..=96);
    let positions = if random.random() { Positions::Sequence } else { Positions::Max };
    let longest = if positions == Positions::Max { l_max } else { l_max + 40 };
    let config = BlockConfig {
        d_model: 8 * random.random_range(1..=4),
        d_inner: random.random_range(1..=48),
        emb_dim: 1 + 2 * random.random_range(1..=3),
        filter_order: random.random_range(1..=20),
        short_filter: random.random_range(2..=8),
        l_max,
        layer_norm_eps: *[1e-5, 1e-3, 0.1].choose(&mut random).unwrap(),
        shift: *[0.05, 0.0, 0.5].choose(&mut random).unwrap(),
        filter_layout: if random.random() { FilterLayout::Reshape } else { FilterLayout::Transpose },
        filter_bias_in_filter: random.random(),
        positions,
    };
    let options = CompileOptions {
        precision: if random.random() { Precision::Mixed } else { Precision::Ieee },
        fuse: if random.random_ratio(4, 5) { Fuse::All } else { Fuse::None },
        mode: if random.random() { Mode::Live } else { Mode::Frozen },
        machine: Machine::named(Machine::names().choose(&mut random).unwrap()).unwrap(),
        ..CompileOptions::new(random.random_range(1..=3), random.random_range(1..=longest))
    };
    (config, options)
}

fn difference(number: u64) -> Result<f64, String> {
    let (config, options) = draw(number);
    let (batch, seq_len) = (options.batch, options.seq_len);
    let compilation = compile(&config, &options).map_err(|error| error.to_string())?;
    let inputs = generate(Distribution::Trained, &config, batch, seq_len, number).map_err(|error| error.to_string())?;
    let tensors =
        HyenaBlock::tensors(&inputs.block, &inputs.hidden_states, batch, seq_len).map_err(|error| error.to_string())?;
    let value = |graph| -> Result<Tensor<f64>, String> {
        let mut outputs = evaluate(graph, &tensors, Rounding::Exact).map_err(|error| error.to_string())?;
        if outputs.len() == 1 { Ok(outputs.remove(0)) } else { Err(format!("{} outputs", outputs.len())) }
    };
    Ok(value(&compilation.optimized)?.relative_l2(&value(&compilation.reference)?))
}

#[test]
fn extracted_graphs_have_the_values_of_the_reference_graph() {
    let failures: Vec<String> = (0..CONFIGURATIONS)
        .into_par_iter()
        .filter_map(|number| match difference(number) {
            Ok(difference) if difference <= BAR => None,
            Ok(difference) => Some(format!("{number}: differs by {difference:e}: {:?}", draw(number))),
            Err(error) => Some(format!("{number}: {error}: {:?}", draw(number))),
        })
        .collect();
    assert!(failures.is_empty(), "{} of {CONFIGURATIONS}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_configurations_cover_what_they_are_meant_to() {
    let drawn: Vec<(BlockConfig, CompileOptions)> = (0..CONFIGURATIONS).map(draw).collect();
    let share = |what: &str, least: usize, holds: &dyn Fn(&BlockConfig, &CompileOptions) -> bool| {
        let count = drawn.iter().filter(|(config, options)| holds(config, options)).count();
        assert!(count >= least, "{what}: {count} of {CONFIGURATIONS}");
    };
    share("padded sequences", 10, &|config, options| options.seq_len > config.l_max);
    share("odd lengths", 60, &|_, options| options.seq_len % 2 == 1);
    share("lengths above 64", 20, &|_, options| options.seq_len > 64);
    for layout in [FilterLayout::Reshape, FilterLayout::Transpose] {
        for bias in [false, true] {
            for positions in [Positions::Sequence, Positions::Max] {
                share("switches", 10, &|config, _| {
                    (config.filter_layout, config.filter_bias_in_filter, config.positions) == (layout, bias, positions)
                });
            }
        }
    }
    for machine in Machine::names() {
        share(machine, 25, &|_, options| options.machine.name() == machine);
    }
    for mode in [Mode::Live, Mode::Frozen] {
        for precision in [Precision::Mixed, Precision::Ieee] {
            share("modes and precisions", 30, &|_, options| (options.mode, options.precision) == (mode, precision));
        }
    }
    share("unfused", 20, &|_, options| options.fuse == Fuse::None);
}
