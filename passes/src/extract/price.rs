//! What the target says, asked once for each region.

use std::collections::HashMap;

use hyenac_ir::{IrError, Region};
use rayon::prelude::*;

use crate::target::{Offer, Refusal, Target};

/// A target's answer.
pub type Answer = Result<Offer, Refusal>;

/// A memory of the target's answers by printed term.
pub struct Prices<'t> {
    target: &'t dyn Target,
    answers: HashMap<String, Answer>,
}

impl<'t> Prices<'t> {
    /// Nothing asked yet.
    pub fn new(target: &'t dyn Target) -> Prices<'t> {
        Prices { target, answers: HashMap::new() }
    }

    /// Number of regions asked about.
    pub fn asked(&self) -> usize {
        self.answers.len()
    }

    /// Answers about regions given by term; what is not known yet is built and asked, in parallel.
    ///
    /// # Errors
    /// When a region cannot be built.
    pub fn ask(
        &mut self,
        terms: &[&str],
        build: impl Fn(usize) -> Result<Region, IrError> + Sync,
    ) -> Result<Vec<Answer>, IrError> {
        let mut unknown: Vec<usize> =
            (0..terms.len()).filter(|index| !self.answers.contains_key(terms[*index])).collect();
        unknown.sort_by_key(|index| terms[*index]);
        unknown.dedup_by_key(|index| terms[*index]);
        let target = self.target;
        let answers: Vec<Result<Answer, IrError>> =
            unknown.par_iter().map(|index| Ok(sensible(target.price(&build(*index)?)))).collect();
        for (index, answer) in unknown.into_iter().zip(answers) {
            self.answers.insert(terms[index].to_owned(), answer?);
        }
        Ok(terms.iter().map(|term| self.answers[*term].clone()).collect())
    }
}

/// An offer whose time is not a time is none: the search could not order it.
fn sensible(answer: Answer) -> Answer {
    match answer {
        Ok(offer) if !(offer.time_us.is_finite() && offer.time_us >= 0.0) => Err(Refusal {
            op: "region".to_owned(),
            why: format!("the target's price {} us is no time", offer.time_us),
            larger: true,
        }),
        answer => answer,
    }
}
