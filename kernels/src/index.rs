//! Index expressions of generated code, kept symbolic so that views cost no arithmetic.

use std::fmt;

/// An unsigned index expression with a known exclusive upper bound.
///
/// Construction simplifies what views produce: a flattened and unflattened index becomes itself again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Index {
    form: Form,
    bound: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    Constant(u64),
    Variable(String),
    Sum(Box<Index>, Box<Index>),
    Difference(Box<Index>, u64),
    Product(Box<Index>, u64),
    Quotient(Box<Index>, u64),
    Remainder(Box<Index>, u64),
}

impl Index {
    /// A constant.
    pub fn constant(value: u64) -> Index {
        Index { form: Form::Constant(value), bound: value.saturating_add(1) }
    }

    /// A variable of the generated code (any expression that binds tighter than `+`), below `bound`.
    pub fn variable(name: impl Into<String>, bound: usize) -> Index {
        if bound <= 1 {
            return Index::constant(0);
        }
        Index { form: Form::Variable(name.into()), bound: bound as u64 }
    }

    /// Exclusive upper bound.
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// A value that the index never goes below.
    pub fn minimum(&self) -> u64 {
        match &self.form {
            Form::Constant(value) => *value,
            Form::Sum(a, b) => a.minimum() + b.minimum(),
            Form::Product(a, factor) => a.minimum() * factor,
            _ => 0,
        }
    }

    /// The value, if it is a constant.
    pub fn as_constant(&self) -> Option<u64> {
        match self.form {
            Form::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// `self + other`.
    pub fn plus(&self, other: &Index) -> Index {
        match (&self.form, &other.form) {
            (Form::Constant(0), _) => return other.clone(),
            (_, Form::Constant(0)) => return self.clone(),
            (Form::Constant(a), Form::Constant(b)) => return Index::constant(a + b),
            // (x / n) * n + x % n = x
            (Form::Product(quotient, n), _) => {
                if let Form::Quotient(x, k) = &quotient.form
                    && k == n
                    && x.modulo(*n) == *other
                {
                    return (**x).clone();
                }
            }
            _ => {}
        }
        Index {
            bound: (self.bound - 1).saturating_add(other.bound),
            form: Form::Sum(Box::new(self.clone()), Box::new(other.clone())),
        }
    }

    /// `self - amount`, where generated code has ensured that `self >= amount`.
    pub fn minus(&self, amount: u64) -> Index {
        match &self.form {
            _ if amount == 0 => self.clone(),
            Form::Constant(value) => Index::constant(value.saturating_sub(amount)),
            // (x + c) - amount
            Form::Sum(x, other) if other.as_constant().is_some() => {
                let constant = other.as_constant().unwrap_or_default();
                if constant >= amount {
                    x.plus(&Index::constant(constant - amount))
                } else {
                    x.minus(amount - constant)
                }
            }
            _ => Index {
                bound: self.bound.saturating_sub(amount).max(1),
                form: Form::Difference(Box::new(self.clone()), amount),
            },
        }
    }

    /// `self * factor`.
    pub fn times(&self, factor: u64) -> Index {
        match &self.form {
            _ if factor == 0 => Index::constant(0),
            _ if factor == 1 => self.clone(),
            Form::Constant(value) => Index::constant(value * factor),
            Form::Product(inner, n) => inner.times(n * factor),
            _ => Index {
                bound: (self.bound - 1).saturating_mul(factor).saturating_add(1),
                form: Form::Product(Box::new(self.clone()), factor),
            },
        }
    }

    /// `self / divisor`.
    pub fn over(&self, divisor: u64) -> Index {
        if divisor == 1 {
            return self.clone();
        }
        if self.bound <= divisor {
            return Index::constant(0);
        }
        match &self.form {
            Form::Constant(value) => Index::constant(value / divisor),
            // (a * n + b) / n = a when b < n
            Form::Sum(a, b) => match &a.form {
                Form::Product(inner, n) if *n == divisor && b.bound <= divisor => (**inner).clone(),
                Form::Product(inner, n) if n % divisor == 0 && b.bound <= divisor => inner.times(n / divisor),
                _ => self.quotient(divisor),
            },
            Form::Product(inner, n) if n % divisor == 0 => inner.times(n / divisor),
            _ => self.quotient(divisor),
        }
    }

    fn quotient(&self, divisor: u64) -> Index {
        Index { bound: (self.bound - 1) / divisor + 1, form: Form::Quotient(Box::new(self.clone()), divisor) }
    }

    /// `self % divisor`.
    pub fn modulo(&self, divisor: u64) -> Index {
        if self.bound <= divisor {
            return self.clone();
        }
        match &self.form {
            _ if divisor == 1 => Index::constant(0),
            Form::Constant(value) => Index::constant(value % divisor),
            // (a * n + b) % m = b % m when m divides n
            Form::Sum(a, b) => match &a.form {
                Form::Product(_, n) if n % divisor == 0 => b.modulo(divisor),
                _ => self.remainder(divisor),
            },
            Form::Product(_, n) if n % divisor == 0 => Index::constant(0),
            _ => self.remainder(divisor),
        }
    }

    fn remainder(&self, divisor: u64) -> Index {
        Index { bound: divisor, form: Form::Remainder(Box::new(self.clone()), divisor) }
    }

    /// Position in a row-major buffer of this shape.
    pub fn flatten(shape: &[usize], index: &[Index]) -> Index {
        let mut flat = Index::constant(0);
        for (&extent, position) in shape.iter().zip(index) {
            flat = flat.times(extent as u64).plus(position);
        }
        flat
    }

    /// Coordinates of this position in a row-major buffer of `shape`.
    pub fn unflatten(&self, shape: &[usize]) -> Vec<Index> {
        let mut rest = self.clone();
        let mut coordinates = vec![Index::constant(0); shape.len()];
        for axis in (0..shape.len()).rev() {
            let extent = shape[axis] as u64;
            coordinates[axis] = if axis == 0 { rest.clone() } else { rest.modulo(extent) };
            rest = rest.over(extent);
        }
        coordinates
    }

    /// Whether a variable occurs.
    pub fn mentions(&self, variable: &str) -> bool {
        match &self.form {
            Form::Constant(_) => false,
            Form::Variable(name) => name == variable,
            Form::Sum(a, b) => a.mentions(variable) || b.mentions(variable),
            Form::Difference(a, _) | Form::Product(a, _) | Form::Quotient(a, _) | Form::Remainder(a, _) => {
                a.mentions(variable)
            }
        }
    }

    /// Whether the value is a multiple of `n` whatever the variables are.
    pub fn is_multiple_of(&self, n: u64) -> bool {
        match &self.form {
            Form::Constant(value) => value.is_multiple_of(n),
            Form::Sum(a, b) => a.is_multiple_of(n) && b.is_multiple_of(n),
            Form::Product(_, factor) if factor.is_multiple_of(n) => true,
            Form::Product(a, factor) if n.is_multiple_of(*factor) => a.is_multiple_of(n / factor),
            _ => n == 1,
        }
    }

    /// The constant `self - other`, if both are sums of the same terms and it is not negative.
    pub fn distance_from(&self, other: &Index) -> Option<u64> {
        let (mut terms, mut others) = (Vec::new(), Vec::new());
        let (mine, theirs) = (self.terms(&mut terms), other.terms(&mut others));
        terms.sort_unstable();
        others.sort_unstable();
        if terms == others { mine.checked_sub(theirs) } else { None }
    }

    /// Appends the terms of a sum that are not constant; the sum of those that are.
    fn terms<'a>(&'a self, terms: &mut Vec<&'a Index>) -> u64 {
        match &self.form {
            Form::Constant(value) => *value,
            Form::Sum(a, b) => a.terms(terms).saturating_add(b.terms(terms)),
            _ => {
                terms.push(self);
                0
            }
        }
    }

    fn is_wide(&self) -> bool {
        self.bound > u64::from(u32::MAX)
    }

    /// The operand widened to 64 bits where a result needs them and it does not have them itself.
    fn operand(&self, wide: bool) -> String {
        if wide && !self.is_wide() { format!("(unsigned long long)({self})") } else { self.to_string() }
    }
}

/// Prints C++; every compound form is parenthesised, arithmetic is 32-bit unless the bound needs 64.
impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = self.is_wide();
        match &self.form {
            Form::Constant(value) => write!(f, "{value}{}", if wide { "ull" } else { "u" }),
            Form::Variable(name) => f.write_str(name),
            Form::Sum(a, b) => write!(f, "({} + {})", a.operand(wide), b.operand(wide)),
            Form::Difference(a, amount) => write!(f, "({a} - {amount}u)"),
            Form::Product(a, factor) => write!(f, "({} * {factor}u)", a.operand(wide)),
            Form::Quotient(a, divisor) => write!(f, "({a} / {divisor}u)"),
            Form::Remainder(a, divisor) => write!(f, "({a} % {divisor}u)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Index;

    #[test]
    fn flattening_an_unflattened_index_gives_it_back() {
        let flat = Index::variable("i", 6 * 35);
        let coordinates = flat.unflatten(&[6, 35]);
        assert_eq!(Index::flatten(&[6, 35], &coordinates), flat);
    }

    #[test]
    fn coordinates_survive_a_round_trip_through_a_flat_index() {
        let (a, b) = (Index::variable("a", 6), Index::variable("b", 35));
        let flat = Index::flatten(&[6, 35], &[a.clone(), b.clone()]);
        assert_eq!(flat.unflatten(&[6, 35]), vec![a, b]);
    }

    #[test]
    fn a_buffer_read_again_under_another_shape_is_read_in_order() {
        let (row, column) = (Index::variable("row", 16), Index::variable("column", 64));
        let flat = Index::flatten(&[16, 64], &[row, column]);
        assert_eq!(Index::flatten(&[64, 16], &flat.unflatten(&[64, 16])), flat);
    }

    #[test]
    fn neighbours_and_their_alignment_are_known() {
        let row = Index::variable("row", 6).times(40);
        let first = row.plus(&Index::variable("strip", 5).times(8));
        let last = row.plus(&Index::variable("strip", 5).times(8).plus(&Index::constant(7)));
        assert_eq!(last.distance_from(&first), Some(7));
        assert_eq!(first.distance_from(&last), None);
        assert_eq!(first.distance_from(&row), None);
        assert!(first.is_multiple_of(8) && !last.is_multiple_of(8));
        assert!(!Index::variable("row", 6).times(4).is_multiple_of(8));
    }

    #[test]
    fn products_beyond_32_bits_are_computed_in_64() {
        let row = Index::variable("row", 1 << 20);
        assert_eq!(row.times(1 << 14).to_string(), "((unsigned long long)(row) * 16384u)");
    }
}
