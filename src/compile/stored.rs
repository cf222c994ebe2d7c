//! How the stages are kept on disk.

use crate::error::Error;

/// Graphs in the text format, which round-trips exactly and says in which line a stored text is wrong.
pub mod graph {
    use hyenac_ir::{Graph, parse};
    use serde::{Deserialize, Deserializer, Serializer, de};

    /// As text.
    pub fn serialize<S: Serializer>(graph: &Graph, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(graph)
    }

    /// From text, verified.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Graph, D::Error> {
        let text = String::deserialize(deserializer)?;
        let graph = parse(&text).map_err(de::Error::custom)?;
        graph.verify().map_err(de::Error::custom)?;
        Ok(graph)
    }
}

/// A compilation that has no JSON form.
pub fn unstorable(error: serde_json::Error) -> Error {
    Error::Usage { what: "storing the compilation".to_owned(), why: error.to_string() }
}
