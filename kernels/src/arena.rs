//! Placement of buffers in one arena by the launches' happens-before order.

use crate::plan::{ALIGNMENT, Launch};

/// A buffer to place: its size, and the launches that touch it, the first of which defines it.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Size in bytes.
    pub bytes: u64,
    /// Indices of launches, ascending.
    pub launches: Vec<usize>,
}

/// Offsets of the tenants, and what the arena must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Byte offset of each tenant.
    pub offsets: Vec<u64>,
    /// Size of the arena.
    pub bytes: u64,
    /// The largest set of tenants of which any two may be alive together, in aligned bytes: no placement is smaller.
    pub largest_live_bytes: u64,
}

/// For every launch the launches that must have finished before it starts.
fn predecessors(launches: &[Launch]) -> Vec<Vec<bool>> {
    let mut before: Vec<Vec<bool>> = Vec::with_capacity(launches.len());
    for launch in launches {
        let mut reached = vec![false; launches.len()];
        for &direct in &launch.after {
            reached[direct] = true;
            for (earlier, &is_before) in before[direct].iter().enumerate() {
                reached[earlier] |= is_before;
            }
        }
        before.push(reached);
    }
    before
}

/// Places tenants so that two share bytes only if one is dead, on every schedule of the graph, before the
/// other is written.
pub fn place(launches: &[Launch], tenants: &[Tenant]) -> Placement {
    let before = predecessors(launches);
    let dead_before = |a: &Tenant, b: &Tenant| {
        b.launches.first().is_some_and(|&defined| a.launches.iter().all(|&user| before[defined][user]))
    };
    let conflicts: Vec<Vec<bool>> =
        tenants.iter().map(|a| tenants.iter().map(|b| !dead_before(a, b) && !dead_before(b, a)).collect()).collect();
    let aligned: Vec<u64> = tenants.iter().map(|tenant| tenant.bytes.next_multiple_of(ALIGNMENT)).collect();

    let mut by_size: Vec<usize> = (0..tenants.len()).collect();
    by_size.sort_by_key(|&tenant| (std::cmp::Reverse(aligned[tenant]), tenant));
    let by_time: Vec<usize> = (0..tenants.len()).collect();
    let mut by_pressure = by_time.clone();
    by_pressure.sort_by_key(|&tenant| {
        let pressure: u64 = (0..tenants.len()).filter(|&other| conflicts[tenant][other]).map(|o| aligned[o]).sum();
        (std::cmp::Reverse(pressure), tenant)
    });
    let best = [by_size, by_time, by_pressure]
        .into_iter()
        .map(|order| first_fit(&order, &aligned, &conflicts))
        .min_by_key(|(bytes, _)| *bytes);
    let (bytes, offsets) = best.unwrap_or_default();
    Placement { offsets, bytes, largest_live_bytes: heaviest_clique(&aligned, &conflicts) }
}

/// Each tenant in turn at the lowest offset free of conflicts.
fn first_fit(order: &[usize], aligned: &[u64], conflicts: &[Vec<bool>]) -> (u64, Vec<u64>) {
    let mut offsets = vec![0; aligned.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for &tenant in order {
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&other| conflicts[tenant][other])
            .map(|&other| (offsets[other], offsets[other] + aligned[other]))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if offset + aligned[tenant] <= start {
                break;
            }
            offset = offset.max(end);
        }
        offsets[tenant] = offset;
        total = total.max(offset + aligned[tenant]);
        placed.push(tenant);
    }
    (total, offsets)
}

/// Steps of the clique search; beyond them the heaviest clique found so far stands, still a lower bound.
const CLIQUE_STEPS: usize = 200_000;

fn heaviest_clique(weights: &[u64], conflicts: &[Vec<bool>]) -> u64 {
    fn extend(
        candidates: &[usize],
        weight: u64,
        weights: &[u64],
        conflicts: &[Vec<bool>],
        best: &mut u64,
        steps: &mut usize,
    ) {
        *best = (*best).max(weight);
        for (position, &tenant) in candidates.iter().enumerate() {
            let rest: u64 = candidates[position..].iter().map(|&t| weights[t]).sum();
            if weight + rest <= *best || *steps == 0 {
                return;
            }
            *steps -= 1;
            let compatible: Vec<usize> =
                candidates[position + 1..].iter().copied().filter(|&other| conflicts[tenant][other]).collect();
            extend(&compatible, weight + weights[tenant], weights, conflicts, best, steps);
        }
    }
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&tenant| (std::cmp::Reverse(weights[tenant]), tenant));
    let (mut best, mut steps) = (0, CLIQUE_STEPS);
    extend(&order, 0, weights, conflicts, &mut best, &mut steps);
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(after: &[usize]) -> Launch {
        Launch {
            kernel: 0,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            arguments: Vec::new(),
            after: after.to_vec(),
            early: Vec::new(),
            family: String::new(),
            schedule: String::new(),
            predicted_us: 0.0,
            floor_us: 0.0,
            computes: String::new(),
        }
    }

    fn tenant(bytes: u64, launches: &[usize]) -> Tenant {
        Tenant { bytes, launches: launches.to_vec() }
    }

    #[test]
    fn buffers_of_a_sequence_take_turns() {
        let launches = [launch(&[]), launch(&[0]), launch(&[1]), launch(&[2])];
        let tenants = [tenant(1024, &[0, 1]), tenant(1024, &[1, 2]), tenant(1024, &[2, 3])];
        let placement = place(&launches, &tenants);
        assert_eq!(placement.bytes, 2048);
        assert_eq!(placement.largest_live_bytes, 2048);
    }

    #[test]
    fn buffers_of_parallel_branches_never_overlap() {
        // 0 -> {1, 2} -> 3: the branches may run in either order or together.
        let launches = [launch(&[]), launch(&[0]), launch(&[0]), launch(&[1, 2])];
        let tenants = [tenant(512, &[1, 3]), tenant(512, &[2, 3]), tenant(512, &[0, 1])];
        let placement = place(&launches, &tenants);
        assert_eq!(placement.bytes, 1536);
        assert_eq!(placement.largest_live_bytes, 1536);
    }

    #[test]
    fn a_buffer_read_late_keeps_its_bytes() {
        let launches = [launch(&[]), launch(&[0]), launch(&[1]), launch(&[0, 2])];
        let tenants = [tenant(256, &[0, 1, 3]), tenant(256, &[1, 2]), tenant(256, &[2, 3])];
        let placement = place(&launches, &tenants);
        assert_eq!(placement.bytes, 768);
    }
}
