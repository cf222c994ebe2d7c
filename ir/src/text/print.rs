//! Printing.

use std::fmt;

use super::Written;
use crate::graph::{Graph, Value};
use crate::op::Op;
use crate::types::Binding;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("graph ")?;
        block(self, f, 0)?;
        f.write_str("\n")
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.node.index())?;
        if self.output > 0 { write!(f, ".{}", self.output) } else { Ok(()) }
    }
}

fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (position, item) in items.iter().enumerate() {
        f.write_str(if position > 0 { ", " } else { " " })?;
        item.fmt(f)?;
    }
    Ok(())
}

fn block(graph: &Graph, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
    f.write_str("{\n")?;
    let indent = 2 * (depth + 1);
    for index in graph.nodes() {
        let node = graph.node(index);
        write!(f, "{:indent$}%{} = {}", "", index.index(), node.op.mnemonic())?;
        let attributes = node.op.attributes();
        for (name, attribute) in &attributes {
            if Written::of(name) == Written::Behind {
                write!(f, " {attribute}")?;
            }
        }
        list(f, &graph.operands(index))?;
        if let Op::Region(region) = &node.op {
            if !region.schedule.is_empty() {
                write!(f, " schedule {:?}", region.schedule)?;
            }
            f.write_str(" ")?;
            block(region.body(), f, depth + 1)?;
        }
        let in_braces: Vec<String> = attributes
            .iter()
            .filter(|(name, _)| Written::of(name) == Written::InBraces)
            .map(|(name, attribute)| format!("{name} = {attribute}"))
            .collect();
        if !in_braces.is_empty() {
            write!(f, " {{{}}}", in_braces.join(", "))?;
        }
        f.write_str(" :")?;
        list(f, &node.types)?;
        if node.binding == Binding::Weights {
            f.write_str(" @weights")?;
        }
        f.write_str("\n")?;
    }
    write!(f, "{:indent$}return", "")?;
    list(f, graph.outputs())?;
    write!(f, "\n{:indent$}}}", "", indent = 2 * depth)
}
