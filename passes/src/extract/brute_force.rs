//! Extraction against every plan there is, on small graphs.

use std::collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher};
use std::hash::{Hash, Hasher};

use hyenac_ir::{Binding, DType, Graph, Op, Region, Value};

use super::forest::{Class, Forest, Origin, Step};
use super::fragment::Fragment;
use super::region::{build, print};
use super::{cheapest, enumerate};
use crate::encode::encode;
use crate::options::{Bounds, Options};
use crate::saturate::saturate;
use crate::target::{Basis, Offer, Refusal, Target};

/// A target whose prices and refusals are arbitrary but fixed.
struct Arbitrary {
    seed: u64,
}

impl Target for Arbitrary {
    fn fingerprint(&self) -> String {
        self.seed.to_string()
    }

    fn price(&self, region: &Region) -> Result<Offer, Refusal> {
        let mut hasher = DefaultHasher::new();
        (self.seed, format!("{:?}", region.body())).hash(&mut hasher);
        let hash = hasher.finish();
        let ops = region.body().nodes().filter(|n| !matches!(region.body().node(*n).op, Op::Parameter { .. })).count();
        // Single ops always have a kernel, so that there is a plan.
        if ops > 2 && hash.is_multiple_of(4) {
            return Err(Refusal {
                op: "region".to_owned(),
                why: "arbitrary".to_owned(),
                larger: hash.is_multiple_of(8),
            });
        }
        let time_us = 3.0 + (hash >> 32) as f64 / f64::from(u32::MAX) * (2.0 + ops as f64);
        let (floor_us, launches, scratch_bytes, schedule, basis) = (0.0, 1, 0, String::new(), Basis::Modelled);
        Ok(Offer { time_us, floor_us, launches, scratch_bytes, schedule, basis })
    }
}

/// Every consistent choice of steps below `todo`, by plain recursion.
fn expand(forest: &Forest, mut todo: Vec<Class>, steps: BTreeMap<Class, usize>, found: &mut Vec<Fragment>) {
    while todo.last().is_some_and(|class| steps.contains_key(class)) {
        todo.pop();
    }
    let Some(class) = todo.pop() else {
        let mut leaves: Vec<Class> = steps
            .iter()
            .filter_map(|(class, step)| match forest.steps(*class)[*step] {
                Step::Load(stored) => Some(stored),
                Step::Compute { .. } => None,
            })
            .collect();
        leaves.sort_unstable();
        leaves.dedup();
        found.push(Fragment { steps: steps.into_iter().collect(), leaves });
        return;
    };
    for (index, step) in forest.steps(class).iter().enumerate() {
        let mut steps = steps.clone();
        steps.insert(class, index);
        let mut todo = todo.clone();
        if let Step::Compute { operands, .. } = step {
            todo.extend(operands);
        }
        expand(forest, todo, steps, found);
    }
}

struct BruteForce<'a> {
    forest: &'a Forest,
    target: &'a dyn Target,
    frozen: bool,
    regions: BTreeMap<Class, Vec<(f64, Vec<Class>)>>,
}

impl BruteForce<'_> {
    fn price(&self, fragment: &Fragment, root: Class, format: Option<DType>) -> (Result<Offer, Refusal>, Vec<Class>) {
        let loads = print(self.forest, fragment, root, format).loads;
        let bound: Vec<_> = loads.iter().map(|l| (*l, self.forest.value(*l).unwrap().binding)).collect();
        (self.target.price(&build(self.forest, fragment, root, format, &bound).unwrap()), loads)
    }

    /// Whether the target refused a part of the fragment for good.
    fn hopeless(&self, fragment: &Fragment) -> bool {
        fragment
            .computed(self.forest)
            .into_iter()
            .any(|class| matches!(self.price(fragment, class, None).0, Err(refusal) if !refusal.larger))
    }

    /// Times and loads of every region of a stored class.
    fn regions(&mut self, class: Class) -> Vec<(f64, Vec<Class>)> {
        if let Some(known) = self.regions.get(&class) {
            return known.clone();
        }
        let mut all = Vec::new();
        for origin in self.forest.origins(class) {
            let Origin::Mat(format, root) = origin else { continue };
            let mut fragments = Vec::new();
            expand(self.forest, vec![*root], BTreeMap::new(), &mut fragments);
            for fragment in fragments {
                let fits = !fragment.loads_what_it_computes(self.forest) && !fragment.leaves.contains(&class);
                if !fits || self.hopeless(&fragment) {
                    continue;
                }
                if let (Ok(offer), loads) = self.price(&fragment, *root, Some(*format)) {
                    let weights = loads.iter().all(|l| self.forest.value(*l).unwrap().binding == Binding::Weights);
                    all.push((if weights && self.frozen { 0.0 } else { offer.time_us }, loads));
                }
            }
        }
        self.regions.insert(class, all.clone());
        all
    }

    fn best(&mut self, pending: &[Class], paid: &BTreeSet<Class>, spent: f64, best: &mut f64) {
        let Some((&class, rest)) = pending.split_first() else {
            *best = best.min(spent);
            return;
        };
        if paid.contains(&class) || self.forest.source(class).is_some() {
            return self.best(rest, paid, spent, best);
        }
        let mut paid = paid.clone();
        paid.insert(class);
        for (time, loads) in self.regions(class) {
            if spent + time < *best {
                let pending: Vec<Class> = rest.iter().copied().chain(loads).collect();
                self.best(&pending, &paid, spent + time, best);
            }
        }
    }
}

fn add(graph: &mut Graph, op: Op, operands: &[Value]) -> Value {
    graph.add(op, operands).unwrap()
}

fn source(graph: &mut Graph, name: &str, weight: bool, shape: &[usize]) -> Value {
    let (name, shape, dtype) = (name.to_owned(), shape.to_vec(), DType::F32);
    add(graph, if weight { Op::Weight { name, dtype, shape } } else { Op::Input { name, dtype, shape } }, &[])
}

/// Layer norm and linear with a residual: a value used twice.
fn residual() -> Graph {
    let mut graph = Graph::new();
    let x = source(&mut graph, "x", false, &[2, 4]);
    let w = source(&mut graph, "w", true, &[4, 4]);
    let (g, b) = (source(&mut graph, "g", true, &[4]), source(&mut graph, "b", true, &[4]));
    let r = add(&mut graph, Op::Add {}, &[x, b]);
    let norm = add(&mut graph, Op::LayerNorm { eps: 1e-5 }, &[r, g, b]);
    let linear = add(&mut graph, Op::Linear {}, &[norm, w]);
    let result = add(&mut graph, Op::Add {}, &[linear, r]);
    graph.add_output(result);
    graph
}

/// The gated convolution with skip term, by either algorithm.
fn convolution() -> Graph {
    let mut graph = Graph::new();
    let (a, d) = (source(&mut graph, "a", false, &[1, 2, 3]), source(&mut graph, "d", true, &[2, 1]));
    let k = source(&mut graph, "k", true, &[2, 3]);
    let gated = add(&mut graph, Op::Neg {}, &[a]);
    let long = add(&mut graph, Op::LongConv {}, &[gated, k]);
    let skip = add(&mut graph, Op::Mul {}, &[gated, d]);
    let result = add(&mut graph, Op::Add {}, &[long, skip]);
    graph.add_output(result);
    graph
}

/// Weights and input mixed, two outputs, one of which the other needs.
fn two_outputs() -> Graph {
    let mut graph = Graph::new();
    let (x, w) = (source(&mut graph, "x", false, &[4]), source(&mut graph, "w", true, &[4]));
    let exp = add(&mut graph, Op::Exp {}, &[w]);
    let abs = add(&mut graph, Op::Abs {}, &[exp]);
    let product = add(&mut graph, Op::Mul {}, &[x, abs]);
    let sine = add(&mut graph, Op::Sin {}, &[product]);
    let result = add(&mut graph, Op::Add {}, &[sine, abs]);
    graph.add_output(result);
    graph.add_output(product);
    graph
}

#[test]
fn the_search_finds_what_brute_force_finds() {
    for (name, graph) in [("residual", residual()), ("convolution", convolution()), ("two outputs", two_outputs())] {
        for seed in 0..6 {
            for frozen in [false, true] {
                let target = Arbitrary { seed };
                let options = Options { frozen, bounds: Bounds::NONE, ..Options::default() };
                let encoded = encode(&graph).unwrap();
                let saturated = saturate(encoded.egraph, &options).unwrap();
                let forest = Forest::new(saturated.egraph).unwrap();
                let outputs: Vec<Class> = encoded.outputs.iter().map(|id| forest.class(*id)).collect();
                let space = enumerate(&forest, &outputs, &target, &options).unwrap();
                let found = cheapest(&space, &outputs, options.beam_width, &|_| false).unwrap();
                assert!(found.exact);
                let runs = |binding| !(frozen && binding == Binding::Weights);
                let cost: f64 =
                    found.regions.iter().filter(|(_, c)| runs(c.binding)).map(|(_, c)| c.offer.time_us).sum();
                let mut brute = BruteForce { forest: &forest, target: &target, frozen, regions: BTreeMap::new() };
                let mut best = f64::INFINITY;
                brute.best(&outputs, &BTreeSet::new(), 0.0, &mut best);
                assert!((cost - best).abs() < 1e-5, "{name}, seed {seed}, frozen {frozen}: {cost} against {best}");
            }
        }
    }
}
