//! Pictures for Graphviz.

use std::fmt::Write;

use crate::graph::Graph;
use crate::op::Op;
use crate::types::Binding;

impl Graph {
    /// The graph in the language of Graphviz: an op is a box, grey when it depends on weights only, a region is a
    /// cluster around its body, an edge carries the type of the value.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from(
            "digraph hyenac {\n  node [shape=box, style=filled, fillcolor=white, fontname=\"monospace\"];\n  \
             edge [fontname=\"monospace\", fontsize=9];\n",
        );
        nodes(&mut dot, self, "n", 1);
        for (position, output) in self.outputs().iter().enumerate() {
            let source = source(self, "n", *output);
            line(&mut dot, 1, &format!("out{position} [label=\"output {position}\", shape=ellipse];"));
            line(&mut dot, 1, &format!("{source} -> out{position} [label=\"{}\"];", self.ty(*output)));
        }
        dot.push_str("}\n");
        dot
    }
}

fn line(dot: &mut String, depth: usize, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(dot, "{:width$}{text}", "", width = 2 * depth);
}

/// The picture's node that yields a value: for a region, the node of its body that does.
fn source(graph: &Graph, prefix: &str, value: crate::Value) -> String {
    let name = format!("{prefix}{}", value.node.index());
    match graph.op(value) {
        Op::Region(region) => match region.body().outputs().get(value.output as usize) {
            Some(&inner) => source(region.body(), &format!("{name}_"), inner),
            None => name,
        },
        _ => name,
    }
}

fn nodes(dot: &mut String, graph: &Graph, prefix: &str, depth: usize) {
    for index in graph.nodes() {
        let node = graph.node(index);
        let name = format!("{prefix}{}", index.index());
        let operands = graph.operands(index);
        if let Op::Region(region) = &node.op {
            let body = region.body();
            let inner = format!("{name}_");
            line(dot, depth, &format!("subgraph cluster_{name} {{"));
            let title = if region.schedule.is_empty() { "region" } else { &region.schedule };
            line(dot, depth + 1, &format!("label=\"{}\"; style=rounded; color=steelblue;", escape(title)));
            nodes(dot, body, &inner, depth + 1);
            line(dot, depth, "}");
            for (operand, parameter) in operands.iter().zip(body.parameters()) {
                let from = source(graph, prefix, *operand);
                let ty = graph.ty(*operand);
                line(dot, depth, &format!("{from} -> {inner}{} [label=\"{ty}\"];", parameter.index()));
            }
            continue;
        }
        let attributes: Vec<String> = node
            .op
            .attributes()
            .into_iter()
            .filter(|(name, _)| !matches!(*name, "dtype" | "shape" | "binding"))
            .map(|(name, value)| if name == "name" { value.to_string() } else { format!("{name} = {value}") })
            .collect();
        let label = escape(&format!("{} {}", node.op.mnemonic(), attributes.join(", ")));
        let fill = if node.binding == Binding::Weights { ", fillcolor=gray90" } else { "" };
        line(dot, depth, &format!("{name} [label=\"{}\"{fill}];", label.trim_end()));
        for operand in operands {
            let from = source(graph, prefix, operand);
            line(dot, depth, &format!("{from} -> {name} [label=\"{}\"];", graph.ty(operand)));
        }
    }
}

/// Within double quotes, Graphviz knows escapes of its own.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
