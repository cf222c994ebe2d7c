//! Straight-line programs for small Fourier transforms, printed as C++ and evaluated by the tests.

use std::f64::consts::PI;
use std::fmt::Write;

/// One complex operation of a program; operands are numbers of earlier values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Input `n`.
    Input(usize),
    /// `a + b`.
    Sum(usize, usize),
    /// `a - b`.
    Difference(usize, usize),
    /// `a - i b`.
    SumTurned(usize, usize),
    /// `a + i b`.
    DifferenceTurned(usize, usize),
    /// `-i a`.
    Turned(usize),
    /// `-a`.
    Negative(usize),
    /// `c a` with a real constant.
    Scaled(f64, usize),
    /// `c a + b` with a real constant.
    Accumulated(f64, usize, usize),
    /// `(re + i im) a` with a constant.
    Rotated(f64, f64, usize),
}

/// A value of the program, or a zero known beforehand.
type Term = Option<usize>;

/// The program of a transform of `radix` points whose inputs from `filled` on are zero.
pub(super) struct Butterfly {
    radix: usize,
    filled: usize,
    steps: Vec<Step>,
    outputs: Vec<Term>,
}

impl Butterfly {
    /// Builds the program; the radix has no prime factor above 7.
    pub fn new(radix: usize, filled: usize) -> Butterfly {
        let mut program = Butterfly { radix, filled, steps: Vec::new(), outputs: Vec::new() };
        let inputs: Vec<Term> =
            (0..radix).map(|input| (input < filled).then(|| program.push(Step::Input(input)))).collect();
        program.outputs = program.transform(&inputs);
        program
    }

    fn push(&mut self, step: Step) -> usize {
        self.steps.push(step);
        self.steps.len() - 1
    }

    fn sum(&mut self, a: Term, b: Term) -> Term {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.push(Step::Sum(a, b))),
            (a, b) => a.or(b),
        }
    }

    fn difference(&mut self, a: Term, b: Term) -> Term {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.push(Step::Difference(a, b))),
            (None, Some(b)) => Some(self.push(Step::Negative(b))),
            (a, None) => a,
        }
    }

    /// `a - i b` and `a + i b`.
    fn turned_pair(&mut self, a: Term, b: Term) -> (Term, Term) {
        match (a, b) {
            (Some(a), Some(b)) => {
                (Some(self.push(Step::SumTurned(a, b))), Some(self.push(Step::DifferenceTurned(a, b))))
            }
            (None, Some(b)) => {
                let turned = self.push(Step::Turned(b));
                (Some(turned), Some(self.push(Step::Negative(turned))))
            }
            (a, None) => (a, a),
        }
    }

    fn accumulate(&mut self, c: f64, a: Term, b: Term) -> Term {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.push(Step::Accumulated(c, a, b))),
            (Some(a), None) => Some(self.push(Step::Scaled(c, a))),
            (None, b) => b,
        }
    }

    /// `exp(-2 pi i turns / of) a`.
    fn rotate(&mut self, turns: usize, of: usize, a: Term) -> Term {
        let (turns, a) = (turns % of, a?);
        Some(match 4 * turns {
            0 => a,
            quarter if quarter == of => self.push(Step::Turned(a)),
            half if half == 2 * of => self.push(Step::Negative(a)),
            _ => {
                let angle = -2.0 * PI * turns as f64 / of as f64;
                self.push(Step::Rotated(angle.cos(), angle.sin(), a))
            }
        })
    }

    fn transform(&mut self, x: &[Term]) -> Vec<Term> {
        match x.len() {
            1 => x.to_vec(),
            2 => vec![self.sum(x[0], x[1]), self.difference(x[0], x[1])],
            4 => {
                let (a, b) = (self.sum(x[0], x[2]), self.difference(x[0], x[2]));
                let (c, d) = (self.sum(x[1], x[3]), self.difference(x[1], x[3]));
                let (low, high) = (self.sum(a, c), self.difference(a, c));
                let (minus, plus) = self.turned_pair(b, d);
                vec![low, minus, high, plus]
            }
            3 | 5 | 7 => self.odd_prime(x),
            n => {
                let inner = [4, 2, 3, 5, 7].into_iter().find(|prime| n % prime == 0).unwrap_or(n);
                self.composite(x, inner)
            }
        }
    }

    /// `x_0 + sum_k cos(2 pi q k / p) (x_k + x_{p-k})`, less and plus `i sum_k sin(2 pi q k / p) (x_k - x_{p-k})`.
    fn odd_prime(&mut self, x: &[Term]) -> Vec<Term> {
        let p = x.len();
        let half = (p - 1) / 2;
        let pairs: Vec<(Term, Term)> =
            (1..=half).map(|k| (self.sum(x[k], x[p - k]), self.difference(x[k], x[p - k]))).collect();
        let mut outputs = vec![None; p];
        outputs[0] = pairs.iter().fold(x[0], |total, &(even, _)| self.sum(total, even));
        for q in 1..=half {
            let (mut even, mut odd) = (x[0], None);
            for (k, &(sum, difference)) in (1..).zip(&pairs) {
                let angle = 2.0 * PI * (q * k % p) as f64 / p as f64;
                even = self.accumulate(angle.cos(), sum, even);
                odd = self.accumulate(angle.sin(), difference, odd);
            }
            (outputs[q], outputs[p - q]) = self.turned_pair(even, odd);
        }
        outputs
    }

    /// `n = inner * outer` points: transforms of `inner` points `outer` apart, rotations, transforms of `outer`.
    fn composite(&mut self, x: &[Term], inner: usize) -> Vec<Term> {
        let n = x.len();
        let outer = n / inner;
        let mut columns: Vec<Vec<Term>> = Vec::new();
        for j in 0..outer {
            let column: Vec<Term> = (0..inner).map(|i| x[i * outer + j]).collect();
            let column = self.transform(&column);
            columns.push(column.into_iter().enumerate().map(|(q, term)| self.rotate(q * j, n, term)).collect());
        }
        let mut outputs = vec![None; n];
        for q in 0..inner {
            let row: Vec<Term> = columns.iter().map(|column| column[q]).collect();
            for (k, term) in self.transform(&row).into_iter().enumerate() {
                outputs[q + inner * k] = term;
            }
        }
        outputs
    }

    /// The specialisation of `Dft` that runs this program.
    pub fn emit(&self) -> String {
        let Butterfly { radix, filled, .. } = self;
        let mut text = format!(
            "template <>\nstruct Dft<{radix}, {filled}> {{\n    \
             static __device__ __forceinline__ void run(float2 (&v)[{radix}]) {{\n"
        );
        for (number, step) in self.steps.iter().enumerate() {
            let value = match *step {
                Step::Input(input) => format!("v[{input}]"),
                Step::Sum(a, b) => format!("sum(t{a}, t{b})"),
                Step::Difference(a, b) => format!("difference(t{a}, t{b})"),
                Step::SumTurned(a, b) => format!("sum_turned(t{a}, t{b})"),
                Step::DifferenceTurned(a, b) => format!("difference_turned(t{a}, t{b})"),
                Step::Turned(a) => format!("turned(t{a})"),
                Step::Negative(a) => format!("negative(t{a})"),
                Step::Scaled(c, a) => format!("scaled({:?}f, t{a})", c as f32),
                Step::Accumulated(c, a, b) => format!("accumulated({:?}f, t{a}, t{b})", c as f32),
                Step::Rotated(re, im, a) => {
                    format!("rotated({:?}f, {:?}f, t{a})", re as f32, im as f32)
                }
            };
            let _ = writeln!(text, "        const float2 t{number} = {value};");
        }
        for (output, term) in self.outputs.iter().enumerate() {
            let value = term.map_or("make_float2(0.0f, 0.0f)".to_owned(), |number| format!("t{number}"));
            let _ = writeln!(text, "        v[{output}] = {value};");
        }
        text.push_str("    }\n};\n");
        text
    }
}

#[cfg(test)]
pub(super) type Complex = (f64, f64);

#[cfg(test)]
impl Butterfly {
    /// Runs the program.
    pub fn run(&self, inputs: &[Complex]) -> Vec<Complex> {
        let mut values: Vec<Complex> = Vec::new();
        for step in &self.steps {
            let v = |number: usize| -> Complex { values[number] };
            values.push(match *step {
                Step::Input(input) => inputs[input],
                Step::Sum(a, b) => (v(a).0 + v(b).0, v(a).1 + v(b).1),
                Step::Difference(a, b) => (v(a).0 - v(b).0, v(a).1 - v(b).1),
                Step::SumTurned(a, b) => (v(a).0 + v(b).1, v(a).1 - v(b).0),
                Step::DifferenceTurned(a, b) => (v(a).0 - v(b).1, v(a).1 + v(b).0),
                Step::Turned(a) => (v(a).1, -v(a).0),
                Step::Negative(a) => (-v(a).0, -v(a).1),
                Step::Scaled(c, a) => (c * v(a).0, c * v(a).1),
                Step::Accumulated(c, a, b) => (c * v(a).0 + v(b).0, c * v(a).1 + v(b).1),
                Step::Rotated(re, im, a) => (re * v(a).0 - im * v(a).1, re * v(a).1 + im * v(a).0),
            });
        }
        self.outputs.iter().map(|term| term.map_or((0.0, 0.0), |number| values[number])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_radix_agrees_with_the_definition_for_every_number_of_zeros() {
        for radix in 1..=16 {
            if [11, 13].contains(&radix) {
                continue;
            }
            for filled in 1..=radix {
                let x: Vec<Complex> = (0..radix)
                    .map(|j| if j < filled { (1.0 + j as f64 * 0.7, 2.0 - (j * j) as f64 * 0.3) } else { (0.0, 0.0) })
                    .collect();
                let found = Butterfly::new(radix, filled).run(&x);
                for (k, found) in found.iter().enumerate() {
                    let mut expected = (0.0, 0.0);
                    for (j, &(re, im)) in x.iter().enumerate() {
                        let (sin, cos) = (-2.0 * PI * (j * k % radix) as f64 / radix as f64).sin_cos();
                        expected.0 += re * cos - im * sin;
                        expected.1 += re * sin + im * cos;
                    }
                    assert!(
                        (found.0 - expected.0).hypot(found.1 - expected.1) < 1e-11,
                        "radix {radix}, {filled} filled, bin {k}: {found:?}, expected {expected:?}"
                    );
                }
            }
        }
    }
}
