//! The text format: prints and parses, and round-trips exactly.
//!
//! `docs/ir.md` states the grammar. Both directions derive from the op table: operands and attributes are
//! those of the row; the attributes `dtype`, `shape` and `binding` are not written, the type says them,
//! and the attribute `name` stands in quotes behind the mnemonic.

mod error;
mod lex;
mod parse;
mod print;

use crate::graph::Graph;

pub use error::{ParseError, ParseProblem};
pub use parse::parse;

/// How one attribute of the op table is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    /// In quotes behind the mnemonic.
    Behind,
    /// By the result's dtype.
    ByDType,
    /// By the result's shape.
    ByShape,
    /// By the result's binding.
    ByBinding,
    /// In braces.
    InBraces,
}

impl Written {
    fn of(attribute: &str) -> Written {
        match attribute {
            "name" => Written::Behind,
            "dtype" => Written::ByDType,
            "shape" => Written::ByShape,
            "binding" => Written::ByBinding,
            _ => Written::InBraces,
        }
    }
}

impl Graph {
    /// The graph in the text format.
    pub fn to_text(&self) -> String {
        self.to_string()
    }
}

impl std::str::FromStr for Graph {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Graph, ParseError> {
        parse(text)
    }
}
