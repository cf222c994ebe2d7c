//! Launches that begin before those they depend on have ended, and the launch that a graph begins with.

use crate::plan::Launch;

/// What a launch does so that launches may overlap.
#[derive(Clone, Copy)]
pub struct Overlap {
    /// Its blocks wait for the launches before it.
    pub waits: bool,
    /// Its blocks let the next launches begin.
    pub calls_next: bool,
}

/// The longest launch that others are made to wait for, so that a graph begins with one node, microseconds.
const LONGEST_OPENER_US: f64 = 5.0;

/// Makes the root that most launches wait for the only one, and the first launch; among several the shortest.
///
/// A graph that forks at its root takes about 2 us longer than one whose first node forks (measured on an H200), more
/// than a short kernel in front of the others costs.
pub fn open_with_one(launches: &mut Vec<Launch>, overlap: &[Overlap]) {
    let roots: Vec<usize> = (0..launches.len()).filter(|&launch| launches[launch].after.is_empty()).collect();
    let dependents = |root: usize| launches.iter().filter(|launch| launch.after.contains(&root)).count();
    let by_use = |&a: &usize, &b: &usize| {
        let shorter = || launches[a].predicted_us.total_cmp(&launches[b].predicted_us);
        dependents(b).cmp(&dependents(a)).then_with(shorter)
    };
    let Some(opener) = roots
        .iter()
        .copied()
        .min_by(by_use)
        .filter(|&opener| roots.len() > 1 && launches[opener].predicted_us <= LONGEST_OPENER_US)
    else {
        return;
    };
    let first = launches.remove(opener);
    launches.insert(0, first);
    let calls_next = overlap.get(opener).is_some_and(|opener| opener.calls_next);
    let others = overlap.iter().enumerate().filter(|(launch, _)| *launch != opener);
    for (launch, (_, overlap)) in launches[1..].iter_mut().zip(others) {
        for after in launch.after.iter_mut().chain(&mut launch.early) {
            *after = match (*after).cmp(&opener) {
                std::cmp::Ordering::Equal => 0,
                std::cmp::Ordering::Less => *after + 1,
                std::cmp::Ordering::Greater => *after,
            };
        }
        launch.after.sort_unstable();
        launch.early.sort_unstable();
        if launch.after.is_empty() {
            launch.after.push(0);
            // It reads nothing of the opener: it has only to end after it.
            if overlap.waits && calls_next {
                launch.early.push(0);
            }
        }
    }
}
