//! The cheapest set of regions: a frontier search over the stored values still needed, consumers first.

use std::collections::HashMap;

use super::enumerate::{Candidate, Space};
use super::forest::Class;

/// A plan that the search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The region of each stored value in the plan, consumers first.
    pub regions: Vec<(Class, Candidate)>,
    /// Whether no state was cut by the beam, so that no plan from these candidates is cheaper.
    pub exact: bool,
}

/// A set of positions.
type Needed = Box<[u64]>;

fn contains(set: &Needed, position: usize) -> bool {
    set[position / 64] >> (position % 64) & 1 == 1
}

struct State {
    needed: Needed,
    cost: u64,
    /// Cost plus the cheapest region of each needed value: no completion costs less.
    bound: u64,
    /// The last decision, an index into the list of decisions.
    decision: Option<usize>,
}

/// A region picked by a state, and the decision before it.
struct Decision {
    position: usize,
    candidate: usize,
    before: Option<usize>,
}

struct Choice<'s> {
    candidate: &'s Candidate,
    /// The positions it needs in turn.
    loads: Vec<usize>,
    /// The rank of its printed term, for ties.
    rank: usize,
}

/// The choices for every position, and where the search starts.
struct Problem<'s> {
    /// Stored classes, consumers first: every region loads from higher positions only.
    order: Vec<Class>,
    /// The regions of each position whose loads are feasible, the cheapest for each set of loads.
    choices: Vec<Vec<Choice<'s>>>,
    /// The cheapest cost of a position with all it loads, if nothing were shared.
    inclusive: Vec<Option<u64>>,
    /// The cost of the cheapest region of a position alone.
    least: Vec<u64>,
    /// The positions of the outputs.
    outputs: Needed,
}

/// The share of the beam that looks for a good upper bound first.
const SCOUT_SHARE: usize = 10;

/// The cheapest plan for these outputs without banned regions, if there is any.
pub fn cheapest(
    space: &Space,
    outputs: &[Class],
    beam: usize,
    banned: &(dyn Fn(&Candidate) -> bool + Sync),
) -> Option<Found> {
    let problem = Problem::new(space, outputs, banned)?;
    // A narrow search is quick, and what it finds lets the wide one discard all that cannot be better.
    match problem.search((beam / SCOUT_SHARE).max(1), problem.greedy()) {
        Some((scout, _)) if scout.exact => Some(scout),
        Some((scout, cost)) => Some(problem.search(beam, cost).map_or(scout, |(found, _)| found)),
        // Under a ceiling a beam may keep only states that turn out dearer in the end; without one it always has a plan.
        None => problem.search(beam, u64::MAX).map(|(found, _)| found),
    }
}

impl<'s> Problem<'s> {
    /// The problem of a space without banned regions; none if an output has no plan.
    fn new(space: &'s Space, outputs: &[Class], banned: &dyn Fn(&Candidate) -> bool) -> Option<Problem<'s>> {
        let order: Vec<Class> = space.candidates.iter().rev().map(|(class, _)| *class).collect();
        let positions: HashMap<Class, usize> = order.iter().enumerate().map(|(p, class)| (*class, p)).collect();
        let mut terms: Vec<&str> =
            space.candidates.iter().flat_map(|(_, all)| all.iter().map(|c| c.term.as_str())).collect();
        terms.sort_unstable();
        terms.dedup();
        let mut choices: Vec<Vec<Choice<'_>>> = order.iter().map(|_| Vec::new()).collect();
        // A value is feasible if some region of it loads feasible values only; the last positions come first.
        let mut inclusive: Vec<Option<u64>> = vec![None; order.len()];
        for (position, (_, all)) in (0..order.len()).rev().zip(&space.candidates) {
            for candidate in all.iter().filter(|candidate| !banned(candidate)) {
                let mut loads: Vec<usize> =
                    candidate.loads.iter().filter_map(|load| positions.get(load).copied()).collect();
                loads.sort_unstable();
                if loads.iter().all(|load| inclusive[*load].is_some()) {
                    let rank = terms.binary_search(&candidate.term.as_str()).unwrap_or(terms.len());
                    choices[position].push(Choice { candidate, loads, rank });
                }
            }
            // Of regions that need the same values only the cheapest matters.
            let all = &mut choices[position];
            all.sort_by(|a, b| (&a.loads, a.candidate.cost, a.rank).cmp(&(&b.loads, b.candidate.cost, b.rank)));
            all.dedup_by(|later, first| later.loads == first.loads);
            inclusive[position] = choices[position].iter().map(|choice| choice.inclusive(&inclusive)).min();
        }
        let mut needed: Needed = vec![0; order.len().div_ceil(64).max(1)].into();
        for output in outputs {
            if let Some(&position) = positions.get(output) {
                inclusive[position]?;
                needed[position / 64] |= 1 << (position % 64);
            }
        }
        let least = choices.iter().map(|all| all.iter().map(|choice| choice.candidate.cost).min().unwrap_or(0));
        Some(Problem { least: least.collect(), order, choices, inclusive, outputs: needed })
    }

    /// The cheapest plan that costs no more than the ceiling, and its cost; the beam may lose it.
    fn search(&self, beam: usize, ceiling: u64) -> Option<(Found, u64)> {
        let Problem { order, choices, least, .. } = self;
        let bound = (0..order.len()).filter(|p| contains(&self.outputs, *p)).map(|p| least[p]).sum();
        let mut decisions: Vec<Decision> = Vec::new();
        let mut states = vec![State { needed: self.outputs.clone(), cost: 0, bound, decision: None }];
        let mut exact = true;
        for position in 0..order.len() {
            let mut next: Vec<State> = Vec::new();
            let mut known: HashMap<Needed, usize> = HashMap::new();
            for state in states {
                for state in self.advance(position, state, ceiling, &mut decisions) {
                    match known.get(&state.needed) {
                        None => {
                            known.insert(state.needed.clone(), next.len());
                            next.push(state);
                        }
                        Some(&index) => {
                            let other = &next[index];
                            let better = state.cost < other.cost
                                || state.cost == other.cost
                                    && ranks(&state, &decisions, choices) < ranks(other, &decisions, choices);
                            if better {
                                next[index] = state;
                            }
                        }
                    }
                }
            }
            if next.len() > beam {
                exact = false;
                next.sort_by_cached_key(|state| (state.bound, ranks(state, &decisions, choices)));
                next.truncate(beam);
            }
            states = next;
        }
        let best = states.into_iter().min_by_key(|state| (state.cost, ranks(state, &decisions, choices)))?;
        let mut regions = Vec::new();
        let mut last = best.decision;
        while let Some(index) = last {
            let Decision { position, candidate, before } = &decisions[index];
            regions.push((order[*position], choices[*position][*candidate].candidate.clone()));
            last = *before;
        }
        regions.reverse();
        Some((Found { regions, exact }, best.cost))
    }

    /// The states that follow from one: one for each region of a needed position, itself for any other.
    fn advance(&self, position: usize, state: State, ceiling: u64, decisions: &mut Vec<Decision>) -> Vec<State> {
        if !contains(&state.needed, position) {
            return vec![state];
        }
        let mut reached = Vec::new();
        for (index, choice) in self.choices[position].iter().enumerate() {
            let mut needed = state.needed.clone();
            needed[position / 64] &= !(1 << (position % 64));
            let mut bound = state.bound - self.least[position] + choice.candidate.cost;
            for load in &choice.loads {
                if !contains(&needed, *load) {
                    needed[load / 64] |= 1 << (load % 64);
                    bound += self.least[*load];
                }
            }
            if bound <= ceiling {
                let decision = decisions.len();
                decisions.push(Decision { position, candidate: index, before: state.decision });
                let cost = state.cost + choice.candidate.cost;
                reached.push(State { needed, cost, bound, decision: Some(decision) });
            }
        }
        reached
    }

    /// What the plan costs that picks for each value the region that is cheapest with all it loads.
    fn greedy(&self) -> u64 {
        let mut needed = self.outputs.clone();
        let mut cost: u64 = 0;
        for (position, all) in self.choices.iter().enumerate() {
            if !contains(&needed, position) {
                continue;
            }
            let by = |choice: &&Choice<'_>| (choice.inclusive(&self.inclusive), choice.rank);
            let Some(choice) = all.iter().min_by_key(by) else { return u64::MAX };
            cost = cost.saturating_add(choice.candidate.cost);
            choice.loads.iter().for_each(|load| needed[load / 64] |= 1 << (load % 64));
        }
        cost
    }
}

impl Choice<'_> {
    /// Its cost with all it loads, if nothing were shared.
    fn inclusive(&self, inclusive: &[Option<u64>]) -> u64 {
        let loads = self.loads.iter().map(|load| inclusive[*load].unwrap_or(0));
        loads.fold(self.candidate.cost, u64::saturating_add)
    }
}

/// The ranks of the terms a state has picked, ascending: what ties are broken by.
fn ranks(state: &State, decisions: &[Decision], choices: &[Vec<Choice<'_>>]) -> Vec<usize> {
    let mut ranks = Vec::new();
    let mut last = state.decision;
    while let Some(index) = last {
        let decision = &decisions[index];
        ranks.push(choices[decision.position][decision.candidate].rank);
        last = decision.before;
    }
    ranks.sort_unstable();
    ranks
}
