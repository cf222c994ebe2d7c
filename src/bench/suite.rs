//! Named lists of (batch, seq_len).

use std::fmt;
use std::str::FromStr;

/// One case: `batch` sequences of `seq_len` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// Batch size.
    pub batch: usize,
    /// Sequence length.
    pub seq_len: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.batch, self.seq_len)
    }
}

/// The sixteen shapes of benchmark problem 051.
pub const SOL051: [(usize, usize); 16] = [
    (2, 128),
    (1, 131),
    (1, 256),
    (4, 256),
    (32, 256),
    (1, 512),
    (2, 512),
    (16, 512),
    (4, 541),
    (8, 997),
    (1, 1024),
    (1, 2048),
    (2, 2048),
    (2, 2053),
    (1, 4096),
    (2, 4096),
];

/// Single long sequences.
pub const LONG: [(usize, usize); 6] = [(1, 8192), (1, 16384), (1, 32768), (1, 160_000), (1, 450_000), (1, 1_000_000)];

/// A list of cases, as the command line takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// The cases, in the order given.
    pub cases: Vec<Case>,
}

impl FromStr for Suite {
    type Err = String;

    fn from_str(text: &str) -> Result<Suite, String> {
        let fixed = |list: &[(usize, usize)]| Suite {
            cases: list.iter().map(|&(batch, seq_len)| Case { batch, seq_len }).collect(),
        };
        match text {
            "sol051" => return Ok(fixed(&SOL051)),
            "long" => return Ok(fixed(&LONG)),
            _ => {}
        }
        let cases = text.split(',').map(case).collect::<Option<Vec<Case>>>();
        cases.map(|cases| Suite { cases }).ok_or_else(|| {
            "expected sol051, long, or a list of batch x length such as 1x1024,2x4096 (both at least 1)".to_owned()
        })
    }
}

fn case(text: &str) -> Option<Case> {
    let (batch, seq_len) = text.trim().split_once('x')?;
    let positive = |digits: &str| digits.parse::<usize>().ok().filter(|&n| n > 0);
    Some(Case { batch: positive(batch)?, seq_len: positive(seq_len)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_lists_parse() {
        assert_eq!("sol051".parse::<Suite>().map(|s| s.cases.len()), Ok(16));
        assert_eq!("long".parse::<Suite>().map(|s| s.cases.len()), Ok(6));
        let suite: Suite = "1x64, 2x32".parse().unwrap();
        assert_eq!(suite.cases, [Case { batch: 1, seq_len: 64 }, Case { batch: 2, seq_len: 32 }]);
        assert_eq!(suite.cases[1].to_string(), "2x32");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "1", "0x5", "5x0", "1x2x3", "ax3", "-1x4", "1x64,", "99999999999999999999x1"] {
            assert!(text.parse::<Suite>().is_err(), "{text}");
        }
    }
}
