//! Extraction: which regions there are, what they cost, and which of them make the cheapest plan.
//!
//! A region is what one `mat` computes, down to its loads. `fragment` and `enumerate` build regions from the
//! bottom up and ask the target about each; `search` picks one region for every stored value that is needed,
//! consumers first; `assemble` turns the picked ones into a graph.

mod assemble;
#[cfg(test)]
mod brute_force;
mod enumerate;
mod forest;
mod fragment;
mod price;
mod region;
mod search;

pub(crate) use assemble::{Assembled, assemble};
pub(crate) use enumerate::{Candidate, Space, enumerate};
pub(crate) use forest::Forest;
pub(crate) use search::{Found, cheapest};
