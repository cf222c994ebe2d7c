//! How far a result is from the reference, and how far it may be. `docs/numerics.md` derives the bars.

use serde::{Deserialize, Serialize};

/// Absolute part of the tolerance of a single element.
pub const ELEMENT_ABSOLUTE: f64 = 2.4e-4;
/// Relative part of the tolerance of a single element.
pub const ELEMENT_RELATIVE: f64 = 1e-5;
/// The largest relative L2 error of a result with f16 and tf32 operands.
pub const MIXED_BAR: f64 = 1e-3;
/// The largest relative L2 error of a result with f32 arithmetic throughout.
pub const IEEE_BAR: f64 = 5e-5;

/// The distance between a result and its reference.
///
/// A NaN or an infinity on either side makes the errors infinite or the ratio smaller, never the reverse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Number of elements compared.
    pub elements: usize,
    /// `|found - expected|_2 / |expected|_2`; infinite when an element is not finite.
    pub rel_l2_err: f64,
    /// Largest `|found - expected|`; infinite when an element is not finite.
    pub max_abs_err: f64,
    /// Fraction of elements with `|found - expected| <= 2.4e-4 + 1e-5 |expected|`.
    pub match_ratio: f64,
    /// Number of elements that are not finite, on either side.
    pub not_finite: usize,
}

impl Comparison {
    /// Compares a result with its reference in float64.
    ///
    /// Slices of different lengths never match: the missing elements count as errors.
    pub fn of(found: &[f32], expected: &[f64]) -> Comparison {
        let elements = found.len().max(expected.len());
        let unmatched = elements - found.len().min(expected.len());
        let (mut difference, mut norm, mut largest) = (0f64, 0f64, 0f64);
        let (mut matching, mut not_finite) = (0usize, 0usize);
        for (&found, &expected) in found.iter().zip(expected) {
            let error = (f64::from(found) - expected).abs();
            if !f64::from(found).is_finite() || !expected.is_finite() {
                not_finite += 1;
                continue;
            }
            difference += error * error;
            norm += expected * expected;
            largest = largest.max(error);
            matching += usize::from(error <= ELEMENT_ABSOLUTE + ELEMENT_RELATIVE * expected.abs());
        }
        let broken = not_finite > 0 || unmatched > 0;
        let relative = match (difference, norm) {
            _ if broken => f64::INFINITY,
            (0.0, _) => 0.0,
            (_, 0.0) => f64::INFINITY,
            _ => (difference / norm).sqrt(),
        };
        Comparison {
            elements,
            rel_l2_err: relative,
            max_abs_err: if broken { f64::INFINITY } else { largest },
            match_ratio: if elements == 0 { 1.0 } else { matching as f64 / elements as f64 },
            not_finite,
        }
    }

    /// Whether the relative L2 error is within a bar.
    pub fn within(&self, bar: f64) -> bool {
        self.not_finite == 0 && self.rel_l2_err <= bar
    }
}

/// A tensor with an element that is not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFinite {
    /// Index of the first such element.
    pub index: Vec<usize>,
    /// `NaN`, `inf` or `-inf`.
    pub value: String,
}

/// The first element that is NaN or infinite.
pub fn first_not_finite(shape: &[usize], values: &[f32]) -> Option<NotFinite> {
    let position = values.iter().position(|value| !value.is_finite())?;
    let mut rest = position;
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&extent| {
            let extent = extent.max(1);
            let along = rest % extent;
            rest /= extent;
            along
        })
        .collect();
    index.reverse();
    Some(NotFinite { index, value: values[position].to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_results_have_no_error() {
        let comparison = Comparison::of(&[1.0, -2.0], &[1.0, -2.0]);
        assert_eq!((comparison.rel_l2_err, comparison.max_abs_err, comparison.match_ratio), (0.0, 0.0, 1.0));
        assert!(comparison.within(0.0));
    }

    #[test]
    fn errors_are_those_of_the_definition() {
        let comparison = Comparison::of(&[3.0, 4.1], &[3.0, 4.0]);
        assert!((comparison.rel_l2_err - 0.1 / 5.0).abs() < 1e-7);
        assert!((comparison.max_abs_err - 0.1).abs() < 1e-6);
        assert_eq!(comparison.match_ratio, 0.5);
        assert!(comparison.within(0.021) && !comparison.within(0.019));
    }

    #[test]
    fn what_is_not_finite_never_passes() {
        for (found, expected) in
            [(f32::NAN, 1.0), (1.0, f64::NAN), (f32::INFINITY, f64::INFINITY), (f32::NAN, f64::NAN)]
        {
            let comparison = Comparison::of(&[found, 0.0], &[expected, 0.0]);
            assert!(!comparison.within(f64::INFINITY), "{found} against {expected}");
            assert_eq!((comparison.match_ratio, comparison.not_finite), (0.5, 1));
        }
    }

    #[test]
    fn a_result_of_another_length_never_passes() {
        assert!(!Comparison::of(&[1.0], &[1.0, 1.0]).within(1.0));
        assert!(!Comparison::of(&[1.0, 1.0], &[1.0]).within(1.0));
    }

    #[test]
    fn a_reference_of_zeros_admits_only_zeros() {
        assert!(Comparison::of(&[0.0], &[0.0]).within(0.0));
        assert!(!Comparison::of(&[1e-30], &[0.0]).within(1.0));
    }

    #[test]
    fn the_first_bad_element_is_named_by_its_index() {
        let found = first_not_finite(&[2, 3], &[0.0, 1.0, 2.0, 3.0, f32::NAN, f32::INFINITY]).unwrap();
        assert_eq!((found.index, found.value.as_str()), (vec![1, 1], "NaN"));
        assert_eq!(first_not_finite(&[2], &[0.0, 1.0]), None);
    }
}
