//! What is measured first, and what a budget of time leaves out.

use std::time::Duration;

/// Candidates that are prepared together: their kernels are compiled by all processors at once.
const BATCH: usize = 32;

/// One measurement: a candidate of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Position of the region.
    pub region: usize,
    /// Position among the region's candidates.
    pub candidate: usize,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Its time, microseconds, net of an empty graph.
    Measured(f64),
    /// Why it has none.
    Failed(String),
    /// Its time, from an earlier measurement of the same kernels.
    Known(f64),
    /// It did not fit into the budget, or came after a failure of the device.
    NotMeasured,
}

impl Outcome {
    /// The time, where there is one.
    pub fn time_us(&self) -> Option<f64> {
        match self {
            Outcome::Measured(time) | Outcome::Known(time) => Some(*time),
            Outcome::Failed(_) | Outcome::NotMeasured => None,
        }
    }
}

/// Why a measurement gave no time.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// For people.
    pub why: String,
    /// Whether the device can be used no more.
    pub ends: bool,
}

/// What does the jobs.
pub trait Worker {
    /// How much time has passed since the work began.
    fn elapsed(&self) -> Duration;

    /// Makes these jobs ready, which come next. The time that it takes counts.
    fn prepare(&mut self, jobs: &[Job]);

    /// Measures one, microseconds net of an empty graph.
    fn measure(&mut self, job: Job) -> Result<f64, Problem>;
}

/// The jobs that are left, of regions and their candidates: the first candidate of every region, then the second of
/// every region, so that a budget cuts off what is least likely to be chosen.
pub fn queue(outcomes: &[Vec<Outcome>]) -> Vec<Job> {
    let most = outcomes.iter().map(Vec::len).max().unwrap_or(0);
    let of_rank = |candidate: usize| {
        let left = move |(_, row): &(usize, &Vec<Outcome>)| row.get(candidate) == Some(&Outcome::NotMeasured);
        outcomes.iter().enumerate().filter(left).map(move |(region, _)| Job { region, candidate })
    };
    (0..most).flat_map(of_rank).collect()
}

/// Does what is left, one job after the other, until the budget is used up or the device fails.
pub fn work_off(outcomes: &mut [Vec<Outcome>], budget: Duration, worker: &mut impl Worker) {
    for batch in queue(outcomes).chunks(BATCH) {
        if worker.elapsed() >= budget {
            return;
        }
        worker.prepare(batch);
        for &job in batch {
            if worker.elapsed() >= budget {
                return;
            }
            let (outcome, ends) = match worker.measure(job) {
                Ok(time) => (Outcome::Measured(time), false),
                Err(Problem { why, ends }) => (Outcome::Failed(why), ends),
            };
            if let Some(place) = outcomes.get_mut(job.region).and_then(|row| row.get_mut(job.candidate)) {
                *place = outcome;
            }
            if ends {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(counts: &[usize]) -> Vec<Vec<Outcome>> {
        counts.iter().map(|&count| vec![Outcome::NotMeasured; count]).collect()
    }

    #[test]
    fn the_best_of_every_region_come_first_and_what_is_known_never() {
        let places = |outcomes: &[Vec<Outcome>]| -> Vec<(usize, usize)> {
            queue(outcomes).iter().map(|job| (job.region, job.candidate)).collect()
        };
        let mut outcomes = left(&[2, 0, 3, 1]);
        assert_eq!(places(&outcomes), [(0, 0), (2, 0), (3, 0), (0, 1), (2, 1), (2, 2)]);
        outcomes[2][0] = Outcome::Known(1.0);
        assert_eq!(places(&outcomes), [(0, 0), (3, 0), (0, 1), (2, 1), (2, 2)]);
        assert!(places(&[]).is_empty());
    }

    /// Each job takes a second, and each batch `preparation` seconds before.
    #[derive(Default)]
    struct Clockwork {
        now: u64,
        preparation: u64,
        /// The region whose job fails, and whether the device fails with it.
        failing: Option<(usize, bool)>,
    }

    impl Worker for Clockwork {
        fn elapsed(&self) -> Duration {
            Duration::from_secs(self.now)
        }

        fn prepare(&mut self, jobs: &[Job]) {
            assert!(jobs.len() <= BATCH);
            self.now += self.preparation;
        }

        fn measure(&mut self, job: Job) -> Result<f64, Problem> {
            self.now += 1;
            match self.failing {
                Some((region, ends)) if region == job.region => Err(Problem { why: "broken".to_owned(), ends }),
                _ => Ok(job.region as f64),
            }
        }
    }

    fn outcomes(jobs: usize, budget: u64, mut worker: Clockwork) -> Vec<Outcome> {
        let mut outcomes = left(&vec![1; jobs]);
        work_off(&mut outcomes, Duration::from_secs(budget), &mut worker);
        outcomes.concat()
    }

    fn measured(outcomes: &[Outcome]) -> usize {
        outcomes.iter().filter(|outcome| outcome.time_us().is_some()).count()
    }

    #[test]
    fn the_budget_ends_the_work() {
        let preparing = |preparation| Clockwork { preparation, ..Clockwork::default() };
        assert_eq!(measured(&outcomes(5, 100, preparing(0))), 5);
        let some = outcomes(5, 3, preparing(0));
        assert_eq!((measured(&some), &some[2], &some[3]), (3, &Outcome::Measured(2.0), &Outcome::NotMeasured));
        assert_eq!(measured(&outcomes(5, 0, preparing(0))), 0);
        assert_eq!(measured(&outcomes(5, 4, preparing(2))), 2);
        assert_eq!(measured(&outcomes(5, 2, preparing(2))), 0);
        assert_eq!(measured(&outcomes(100, 1000, preparing(10))), 100);
    }

    #[test]
    fn a_failure_is_skipped_unless_it_is_the_devices() {
        let failing = |ends| Clockwork { failing: Some((1, ends)), ..Clockwork::default() };
        let broken = Outcome::Failed("broken".to_owned());
        let skipped = outcomes(5, 100, failing(false));
        assert_eq!((measured(&skipped), &skipped[1]), (4, &broken));
        let ended = outcomes(5, 100, failing(true));
        assert_eq!((measured(&ended), &ended[1], &ended[2]), (1, &broken, &Outcome::NotMeasured));
    }
}
