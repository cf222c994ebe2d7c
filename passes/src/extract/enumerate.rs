//! Every region worth considering, from the bottom up.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use hyenac_ir::{Binding, DType, IrError, Op};

use super::forest::{Class, Forest, Origin, Step};
use super::fragment::Fragment;
use super::price::{Answer, Prices};
use super::region::{build, print};
use crate::options::{Bounds, Options};
use crate::target::{Offer, Refusal, Target};

/// Cost units of a microsecond: picoseconds, whole, so that equal sums compare as equal.
const UNITS_PER_US: f64 = 1e6;
/// The share of its time that a region costs which runs only once, so that sensible ones are picked.
const FROZEN_SHARE: f64 = 1e-6;

/// A region that the target accepts.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The fragment it stores.
    pub fragment: Fragment,
    /// The fragment's class.
    pub root: Class,
    /// The format it is stored in.
    pub format: DType,
    /// Its printed term.
    pub term: String,
    /// The stored classes it loads, in the order of its parameters.
    pub loads: Vec<Class>,
    /// Weights if it depends on weights only.
    pub binding: Binding,
    /// What the target offers.
    pub offer: Offer,
    /// What it costs in a plan, picoseconds.
    pub cost: u64,
}

impl Candidate {
    /// Its ops in order, for people.
    pub fn ops(&self, forest: &Forest) -> String {
        let ops = self.fragment.mnemonics(forest, self.root);
        if ops.is_empty() { "cast".to_owned() } else { ops.join(" + ") }
    }

    /// Whether an op is in it.
    pub fn contains(&self, forest: &Forest, mnemonic: &str) -> bool {
        self.fragment.mnemonics(forest, self.root).contains(&mnemonic)
    }
}

/// All candidates of every stored class that a plan may need.
pub struct Space {
    /// Stored classes with their candidates, each after those it loads; candidates by printed term.
    pub candidates: Vec<(Class, Vec<Candidate>)>,
    /// What the target refused, by the class whose region was refused.
    pub refusals: BTreeMap<Class, Vec<Refusal>>,
    /// Number of regions the target was asked about.
    pub asked: usize,
    /// Fragments that were given up to keep their number bounded.
    pub dropped: usize,
}

impl Space {
    /// Whether a stored class has a region whose loads are feasible in turn; enumeration keeps no others.
    pub fn feasible(&self, class: Class) -> bool {
        !self.of(class).is_empty()
    }

    /// What the target said to regions that compute a stored class.
    pub fn refused<'s>(&'s self, forest: &'s Forest, class: Class) -> impl Iterator<Item = &'s Refusal> {
        let roots = forest.origins(class).iter().filter_map(|origin| match origin {
            Origin::Mat(_, root) => Some(*root),
            Origin::Source(_) => None,
        });
        std::iter::once(class).chain(roots).filter_map(|class| self.refusals.get(&class)).flatten()
    }

    /// The candidates of a stored class.
    pub fn of(&self, class: Class) -> &[Candidate] {
        self.candidates.iter().find(|(other, _)| *other == class).map_or(&[], |(_, candidates)| candidates)
    }
}

/// Enumerates the regions for these outputs.
///
/// # Errors
/// When a region does not type-check, which the e-graph's analysis would have reported first.
pub fn enumerate(forest: &Forest, outputs: &[Class], target: &dyn Target, options: &Options) -> Result<Space, IrError> {
    let mut enumerator = Enumerator {
        forest,
        frozen: options.frozen,
        bounds: options.bounds,
        prices: Prices::new(target),
        fragments: BTreeMap::new(),
        inclusive: BTreeMap::new(),
        candidates: Vec::new(),
        open: BTreeSet::new(),
        refusals: BTreeMap::new(),
        dropped: 0,
    };
    for output in outputs {
        enumerator.stored(*output)?;
    }
    let Enumerator { prices, candidates, refusals, dropped, .. } = enumerator;
    Ok(Space { candidates, refusals, asked: prices.asked(), dropped })
}

/// A fragment kept as a building block.
struct Block {
    fragment: Fragment,
    /// What it would cost alone, picoseconds; for one without an offer, what its parts would cost.
    estimate: u64,
}

/// A fragment that may be asked about.
struct Draft {
    block: Block,
    term: String,
    loads: Vec<Class>,
}

struct Enumerator<'a> {
    forest: &'a Forest,
    frozen: bool,
    bounds: Bounds,
    prices: Prices<'a>,
    fragments: BTreeMap<Class, Rc<Vec<Block>>>,
    /// The cost of the cheapest plan for a stored class if nothing were shared; absent if there is none.
    inclusive: BTreeMap<Class, Option<u64>>,
    candidates: Vec<(Class, Vec<Candidate>)>,
    /// Classes being enumerated: a step back to one of them would be a cycle and is left out.
    open: BTreeSet<Class>,
    refusals: BTreeMap<Class, Vec<Refusal>>,
    dropped: usize,
}

impl Enumerator<'_> {
    /// The cheapest cost of a stored class, having enumerated its candidates.
    fn stored(&mut self, class: Class) -> Result<Option<u64>, IrError> {
        if let Some(known) = self.inclusive.get(&class) {
            return Ok(*known);
        }
        if self.forest.source(class).is_some() {
            self.inclusive.insert(class, Some(0));
            return Ok(Some(0));
        }
        if !self.open.insert(class) {
            self.dropped += 1;
            return Ok(None);
        }
        let mut found = Vec::new();
        for origin in self.forest.origins(class) {
            let Origin::Mat(format, root) = origin else { continue };
            let blocks = self.fragments(*root)?;
            let fragments: Vec<Fragment> = blocks.iter().map(|block| block.fragment.clone()).collect();
            let drafts: Vec<Draft> = fragments
                .into_iter()
                .map(|fragment| self.draft(Block { fragment, estimate: 0 }, *root, Some(*format)))
                .collect();
            for (draft, answer) in self.ask(drafts, *root, Some(*format))? {
                match answer {
                    Ok(offer) => {
                        let (binding, cost) = (self.binding(&draft.loads), self.cost(&draft.loads, &offer));
                        let Draft { block: Block { fragment, .. }, term, loads } = draft;
                        found.push(Candidate {
                            fragment,
                            root: *root,
                            format: *format,
                            term,
                            loads,
                            binding,
                            offer,
                            cost,
                        });
                    }
                    Err(refusal) => self.refusals.entry(class).or_default().push(refusal),
                }
            }
        }
        found.sort_by(|a, b| a.term.cmp(&b.term));
        let cheapest = found.iter().map(|c| c.cost.saturating_add(self.leaf_cost(&c.fragment))).min();
        self.open.remove(&class);
        self.inclusive.insert(class, cheapest);
        self.candidates.push((class, found));
        Ok(cheapest)
    }

    /// The fragments of a class that are worth building on.
    fn fragments(&mut self, class: Class) -> Result<Rc<Vec<Block>>, IrError> {
        if let Some(known) = self.fragments.get(&class) {
            return Ok(known.clone());
        }
        if !self.open.insert(class) {
            self.dropped += 1;
            return Ok(Rc::new(Vec::new()));
        }
        let mut kept = Vec::new();
        let mut drafts = Vec::new();
        let forest = self.forest;
        for (index, step) in forest.steps(class).iter().enumerate() {
            match step {
                Step::Load(stored) => {
                    if self.stored(*stored)?.is_some() {
                        let fragment = Fragment { steps: vec![(class, index)], leaves: vec![*stored] };
                        kept.push(Block { fragment, estimate: 0 });
                    }
                }
                Step::Compute { op: Op::Scalar { .. }, .. } => {
                    let fragment = Fragment { steps: vec![(class, index)], leaves: Vec::new() };
                    kept.push(Block { fragment, estimate: 0 });
                }
                Step::Compute { operands, .. } => {
                    for block in self.combine(operands)? {
                        let Block { fragment, estimate } = block;
                        let Some(fragment) = fragment.with(class, index) else { continue };
                        if !fragment.loads_what_it_computes(forest) {
                            drafts.push(self.draft(Block { fragment, estimate }, class, None));
                        }
                    }
                }
            }
        }
        let drafts =
            self.keep(drafts, [self.bounds.asked_per_leaves, self.bounds.asked_per_layouts, self.bounds.asked]);
        let (mut offered, mut blocks) = (Vec::new(), Vec::new());
        for (mut draft, answer) in self.ask(drafts, class, None)? {
            match answer {
                Ok(offer) => {
                    draft.block.estimate = self.cost(&draft.loads, &offer);
                    offered.push(draft);
                }
                Err(refusal) => {
                    if refusal.larger {
                        blocks.push(draft);
                    }
                    self.refusals.entry(class).or_default().push(refusal);
                }
            }
        }
        for (drafts, bound) in [(offered, self.bounds.accepted), (blocks, self.bounds.blocks)] {
            let drafts = self.keep(drafts, [self.bounds.per_leaves, self.bounds.per_layouts, bound]);
            kept.extend(drafts.into_iter().map(|draft| draft.block));
        }
        self.open.remove(&class);
        let kept = Rc::new(kept);
        self.fragments.insert(class, kept.clone());
        Ok(kept)
    }

    /// All ways to have these operands in one region.
    fn combine(&mut self, operands: &[Class]) -> Result<Vec<Block>, IrError> {
        let mut joined = vec![Block { fragment: Fragment::default(), estimate: 0 }];
        for operand in operands {
            let choices = self.fragments(*operand)?;
            let mut next = Vec::new();
            for block in &joined {
                for choice in choices.iter() {
                    if let Some(fragment) = block.fragment.join(&choice.fragment) {
                        next.push(Block { fragment, estimate: block.estimate.saturating_add(choice.estimate) });
                    }
                }
            }
            joined = next;
        }
        Ok(joined)
    }

    fn draft(&self, block: Block, root: Class, format: Option<DType>) -> Draft {
        let printed = print(self.forest, &block.fragment, root, format);
        Draft { block, term: printed.term, loads: printed.loads }
    }

    /// The most promising: by what they and all they load would cost, then by term. Every algorithm has its own
    /// bound, so that a plan without the favourite remains, and so have layouts, which pay only later.
    fn keep(&mut self, mut drafts: Vec<Draft>, [per_leaves, per_layouts, per_algorithm]: [usize; 3]) -> Vec<Draft> {
        let before = drafts.len();
        drafts.sort_by_cached_key(|draft| {
            (draft.block.estimate.saturating_add(self.leaf_cost(&draft.block.fragment)), draft.term.clone())
        });
        let mut leaves: BTreeMap<_, usize> = BTreeMap::new();
        let mut algorithms: BTreeMap<_, usize> = BTreeMap::new();
        let mut relaid: BTreeMap<_, usize> = BTreeMap::new();
        drafts.retain(|draft| {
            let fragment = &draft.block.fragment;
            let (loaded, layouts) = self.loaded(fragment);
            let algorithm = fragment.algorithm(self.forest);
            let same_leaves = leaves.entry((algorithm.clone(), layouts.clone(), loaded)).or_default();
            *same_leaves += 1;
            if *same_leaves > per_leaves {
                return false;
            }
            if layouts.is_empty() {
                let same_algorithm = algorithms.entry(algorithm).or_default();
                *same_algorithm += 1;
                return *same_algorithm <= per_algorithm;
            }
            let same_layouts = relaid.entry((algorithm, layouts)).or_default();
            *same_layouts += 1;
            *same_layouts <= per_layouts
        });
        self.dropped += before - drafts.len();
        drafts
    }

    /// What a fragment loads that matters to the structure of a plan: the values that depend on the input, or
    /// all where none does, whatever their formats, and the layouts that others are moved into, since some
    /// kernels want a weight in panels from their first product on.
    fn loaded(&self, fragment: &Fragment) -> (Vec<Class>, Vec<&[usize]>) {
        let value = |leaf: &Class| match self.forest.origins(*leaf).first() {
            Some(Origin::Mat(_, root)) => *root,
            _ => *leaf,
        };
        let depends = |leaf: &&Class| self.forest.value(**leaf).is_some_and(|v| v.binding == Binding::Input);
        let mut loaded: Vec<Class> = fragment.leaves.iter().filter(depends).map(value).collect();
        if loaded.is_empty() {
            loaded = fragment.leaves.iter().map(value).collect();
        }
        loaded.sort_unstable();
        loaded.dedup();
        let moved = |leaf: &&Class| {
            self.forest.origins(**leaf).iter().any(|origin| match origin {
                Origin::Mat(_, root) => self.forest.steps(*root).iter().any(Step::moves),
                Origin::Source(_) => false,
            })
        };
        let fixed = fragment.leaves.iter().filter(|leaf| !depends(leaf) && moved(leaf));
        let mut layouts: Vec<&[usize]> =
            fixed.filter_map(|leaf| self.forest.value(*leaf)).map(|value| &value.ty.shape[..]).collect();
        layouts.sort_unstable();
        layouts.dedup();
        (loaded, layouts)
    }

    fn leaf_cost(&self, fragment: &Fragment) -> u64 {
        let costs = fragment.leaves.iter().map(|leaf| self.inclusive.get(leaf).copied().flatten().unwrap_or(0));
        costs.fold(0, u64::saturating_add)
    }

    fn binding(&self, loads: &[Class]) -> Binding {
        let bindings = loads.iter().filter_map(|load| self.forest.value(*load)).map(|value| value.binding);
        bindings.max().unwrap_or(Binding::Weights)
    }

    fn cost(&self, loads: &[Class], offer: &Offer) -> u64 {
        let once = self.frozen && self.binding(loads) == Binding::Weights;
        let share = if once { FROZEN_SHARE } else { 1.0 };
        (offer.time_us * share * UNITS_PER_US).round() as u64
    }

    fn ask(&mut self, drafts: Vec<Draft>, root: Class, format: Option<DType>) -> Result<Vec<(Draft, Answer)>, IrError> {
        let forest = self.forest;
        let terms: Vec<&str> = drafts.iter().map(|draft| draft.term.as_str()).collect();
        let answers = self.prices.ask(&terms, |index| {
            let draft = &drafts[index];
            let bound = |load: &Class| (*load, forest.value(*load).map_or(Binding::Weights, |value| value.binding));
            let loads: Vec<(Class, Binding)> = draft.loads.iter().map(bound).collect();
            build(forest, &draft.block.fragment, root, format, &loads)
        })?;
        Ok(drafts.into_iter().zip(answers).collect())
    }
}
