//! The distinct regions of compiled graphs, and the schedules that each may have.

use std::collections::HashMap;

use hyenac_ir::{Binding, Graph, IrError, Op, Region, Value};
use hyenac_kernels::{Candidate, Device, Tuning, families, region_key};

use super::queue::Outcome;

/// A region that some compiled graph has, and its schedules.
pub struct Tuned {
    /// Its key in tuning databases.
    pub key: String,
    /// The region, its parameters bound with the input.
    pub region: Region,
    /// Where it comes from, for people: `1x1024 live`.
    pub cases: Vec<String>,
    /// Schedules of every family that accepts it, the cheapest by the families' models first.
    pub candidates: Vec<Candidate>,
    /// Schedules that the compiled graphs have.
    chosen: Vec<String>,
}

impl Tuned {
    /// Types of the operands, in order.
    pub fn operands(&self) -> Vec<&hyenac_ir::Type> {
        let body = self.region.body();
        body.parameters().into_iter().flat_map(|node| &body.node(node).types).collect()
    }

    /// Types of the outputs, in order.
    pub fn outputs(&self) -> Vec<&hyenac_ir::Type> {
        let body = self.region.body();
        body.outputs().iter().map(|&output| body.ty(output)).collect()
    }

    /// A graph of this region alone, under a schedule: its operands are the inputs, its outputs the outputs.
    ///
    /// # Errors
    /// When the region is not well-typed.
    pub fn alone(&self, schedule: &str) -> Result<Graph, IrError> {
        let mut graph = Graph::new();
        let mut operands = Vec::new();
        for (index, ty) in self.operands().into_iter().enumerate() {
            let op = Op::Input { name: format!("p{index}"), dtype: ty.dtype, shape: ty.shape.clone() };
            operands.push(graph.add(op, &[])?);
        }
        let mut region = self.region.clone();
        schedule.clone_into(&mut region.schedule);
        let node = graph.add_region(region, &operands)?;
        for output in 0..graph.node(node).types.len() {
            graph.add_output(Value { node, output: output as u32 });
        }
        Ok(graph)
    }
}

/// The distinct regions of all graphs that were added, in order of first appearance.
#[derive(Default)]
pub struct Regions {
    /// The regions.
    pub list: Vec<Tuned>,
    by_key: HashMap<String, usize>,
}

impl Regions {
    /// Adds the regions of a graph, those that depend on weights alone among them.
    ///
    /// # Errors
    /// When a region is not well-typed.
    pub fn add(&mut self, graph: &Graph, device: &Device, case: &str) -> Result<(), IrError> {
        for node in graph.nodes() {
            let Op::Region(region) = &graph.node(node).op else { continue };
            let key = region_key(region);
            let index = match self.by_key.get(&key) {
                Some(&index) => index,
                None => {
                    let region = with_late_parameters(region)?;
                    let candidates = candidates(&region, device);
                    let (cases, chosen) = (Vec::new(), Vec::new());
                    self.by_key.insert(key.clone(), self.list.len());
                    self.list.push(Tuned { key, region, cases, candidates, chosen });
                    self.list.len() - 1
                }
            };
            let tuned = &mut self.list[index];
            if tuned.cases.last().is_none_or(|last| last != case) {
                tuned.cases.push(case.to_owned());
            }
            if !tuned.chosen.contains(&region.schedule) {
                tuned.chosen.push(region.schedule.clone());
            }
        }
        Ok(())
    }

    /// Keeps the cheapest `most` candidates of each region, the cheapest of each family, because it is between
    /// families that models err most, and those that a graph has chosen for other reasons.
    pub fn limit(&mut self, most: usize) {
        for tuned in &mut self.list {
            let mut position = 0;
            let mut seen = Vec::new();
            tuned.candidates.retain(|candidate| {
                position += 1;
                let first = !seen.contains(&candidate.family);
                seen.push(candidate.family);
                position <= most || first || tuned.chosen.contains(&candidate.schedule)
            });
        }
    }

    /// What is known before anything is measured: the times of `tuning` that are still valid.
    pub fn outcomes(&self, tuning: Option<&Tuning>, device: &Device) -> Vec<Vec<Outcome>> {
        let of_region = |Tuned { region, candidates, .. }: &Tuned| {
            let times = tuning.and_then(|tuning| tuning.region(region, device));
            let outcome = |candidate: &Candidate| {
                let family = families().iter().find(|family| family.name() == candidate.family)?;
                times?.net_us(region, *family, candidate, device).map(Outcome::Known)
            };
            candidates.iter().map(|candidate| outcome(candidate).unwrap_or(Outcome::NotMeasured)).collect()
        };
        self.list.iter().map(of_region).collect()
    }
}

/// Every candidate of every family, the cheapest first; equal ones in the order of the families, as prices go.
fn candidates(region: &Region, device: &Device) -> Vec<Candidate> {
    let mut all: Vec<Candidate> =
        families().iter().filter_map(|family| family.candidates(region, device).ok()).flatten().collect();
    all.sort_by(|a, b| a.time_us.total_cmp(&b.time_us));
    all
}

/// The region with parameters that are bound with the input, which is what operands of a graph of its own are.
fn with_late_parameters(region: &Region) -> Result<Region, IrError> {
    let body = region.body();
    let mut late = Graph::new();
    for node in body.nodes() {
        let op = match &body.node(node).op {
            Op::Parameter { index, dtype, shape, .. } => {
                Op::Parameter { index: *index, dtype: *dtype, shape: shape.clone(), binding: Binding::Input }
            }
            op => op.clone(),
        };
        // Nodes are appended in the same order, so that values keep their numbers.
        late.add(op, &body.operands(node))?;
    }
    body.outputs().iter().for_each(|&output| late.add_output(output));
    Ok(Region::new(late))
}

#[cfg(test)]
pub mod tests {
    use hyenac::{BlockConfig, CompileOptions, Mode, compile};
    use hyenac_kernels::{TUNING_SCHEMA, TuningDatabase, TuningEntry, lower, lower_region, source_hash};

    use super::super::queue::queue;
    use super::*;

    /// Regions of a small block, live, frozen and frozen again.
    pub fn regions() -> Regions {
        let config = BlockConfig { d_model: 64, d_inner: 128, ..BlockConfig::benchmark() };
        let mut regions = Regions::default();
        for (mode, case) in [(Mode::Live, "live"), (Mode::Frozen, "frozen"), (Mode::Frozen, "again")] {
            let compilation = compile(&config, &CompileOptions { mode, ..CompileOptions::new(1, 40) }).unwrap();
            regions.add(&compilation.optimized, &Device::h200(), case).unwrap();
        }
        regions
    }

    #[test]
    fn regions_are_collected_once_with_where_they_come_from() {
        let regions = regions();
        let mut keys: Vec<&str> = regions.list.iter().map(|tuned| tuned.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), regions.list.len());
        assert!(regions.list.iter().any(|tuned| tuned.cases == ["frozen", "again"]));
        for tuned in &regions.list {
            assert_eq!(region_key(&tuned.region), tuned.key, "binding times change the key");
            assert!(tuned.candidates.is_sorted_by(|a, b| a.time_us <= b.time_us));
            assert!(tuned.chosen.iter().all(|schedule| tuned.candidates.iter().any(|c| c.schedule == *schedule)));
        }
    }

    #[test]
    fn every_candidate_lowers_alone_to_the_kernels_it_has_in_a_block() {
        let mut regions = regions();
        regions.limit(2);
        for tuned in &regions.list {
            for candidate in &tuned.candidates {
                let graph = tuned.alone(&candidate.schedule).unwrap();
                graph.verify().unwrap();
                let plan = lower(&graph, &Device::h200(), Mode::Live).unwrap();
                assert!(plan.setup.is_empty());
                assert_eq!(plan.launches[0].schedule, candidate.schedule);
                let Op::Region(region) = &graph.node(graph.outputs()[0].node).op else { panic!("no region") };
                let lowered = lower_region(region, &Device::h200()).unwrap().1;
                assert_eq!(plan.launches.len(), lowered.kernels.len());
            }
        }
    }

    #[test]
    fn a_limit_keeps_the_cheapest_those_of_other_families_and_the_chosen() {
        let mut regions = regions();
        let tuned = &mut regions.list[0];
        let dear = Candidate { schedule: "dear".to_owned(), time_us: 1e9, ..tuned.candidates[0].clone() };
        let dearer = Candidate { schedule: "dearer".to_owned(), time_us: 2e9, ..dear.clone() };
        let other = Candidate { family: "other", ..dear.clone() };
        let first = tuned.candidates[0].clone();
        tuned.candidates = vec![first.clone(), dear, other.clone(), dearer.clone()];
        tuned.chosen = vec!["dearer".to_owned()];
        regions.limit(1);
        assert_eq!(regions.list[0].candidates, [first, other, dearer]);
    }

    #[test]
    fn what_is_known_need_not_be_measured() {
        let (regions, device) = (regions(), Device::h200());
        let tuned = &regions.list[0];
        let candidate = &tuned.candidates[0];
        let mut scheduled = tuned.region.clone();
        scheduled.schedule.clone_from(&candidate.schedule);
        let source = source_hash(&lower_region(&scheduled, &device).unwrap().1);
        let entry = TuningEntry {
            region: tuned.key.clone(),
            computes: String::new(),
            operands: Vec::new(),
            outputs: Vec::new(),
            family: candidate.family.to_owned(),
            schedule: candidate.schedule.clone(),
            source,
            time_us: 1.5,
        };
        let (target, name) = ("h200".to_owned(), "NVIDIA H200".to_owned());
        let (driver, nvrtc, date) = (None, None, None);
        let schema = TUNING_SCHEMA;
        let database = TuningDatabase { schema, target, device: name, driver, nvrtc, date, entries: vec![entry] };
        let tuning = Tuning::new(&database, &device).unwrap();
        let outcomes = regions.outcomes(Some(&tuning), &device);
        assert_eq!(outcomes[0][0], Outcome::Known(1.5));
        let left = |outcomes: &[Vec<Outcome>]| queue(outcomes).len();
        assert_eq!(left(&outcomes) + 1, left(&regions.outcomes(None, &device)));
    }
}
