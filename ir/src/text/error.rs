//! Errors of the parser.

use crate::error::IrError;

/// The longest excerpt of the input that a message repeats, in characters.
const EXCERPT: usize = 40;

/// Why a text is not a graph, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Offset in bytes, for tools that underline.
    pub offset: usize,
    /// What is wrong there.
    pub problem: ParseProblem,
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParseProblem {
    /// Another token or word was expected.
    #[error("expected {expected}, found {found}{}", did_you_mean(.suggestion))]
    Unexpected {
        /// What may stand here.
        expected: String,
        /// What stands here.
        found: String,
        /// The nearest word that may.
        suggestion: Option<String>,
    },
    /// The text is well formed, the graph is not.
    #[error("{0}")]
    Graph(IrError),
}

fn did_you_mean(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map(|word| format!("; did you mean `{word}`?")).unwrap_or_default()
}

/// A piece of the input for a message, cut to a readable length.
pub(super) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT) {
        Some((end, _)) => format!("`{}...`", &text[..end]),
        None => format!("`{text}`"),
    }
}

/// The known word nearest to a misspelt one, if it is near.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    if word.chars().nth(EXCERPT).is_some() {
        return None;
    }
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}
