//! The specification covers the op table; pictures are well formed.

mod common;

use hyenac_ir::{Attribute, BlockConfig, TABLE, parse};

#[test]
fn every_op_has_its_section() {
    let text = std::fs::read_to_string(common::root().join("docs/ir.md")).expect("docs/ir.md exists");
    let mut sections = text.split("\n### ").skip(1);
    for row in TABLE {
        let section = sections.next().unwrap_or_else(|| panic!("no section for `{}`", row.mnemonic));
        let (heading, body) = section.split_once('\n').expect("a heading ends with its line");
        assert_eq!(heading, format!("`{}`", row.mnemonic), "sections stand in the order of the table");
        for attribute in row.attributes {
            assert!(body.contains(attribute), "`{}` does not state its attribute `{attribute}`", row.mnemonic);
        }
        if !row.operands.is_empty() {
            let call = format!("`{}({})", row.mnemonic, row.operands.join(", "));
            assert!(body.contains(&call), "the section of `{}` does not show {call}`", row.mnemonic);
        }
    }
    assert!(sections.next().is_some_and(|section| section.starts_with("`region`")));
    assert_eq!(sections.next(), None, "a section without an op");
}

#[test]
fn the_example_is_in_canonical_form() {
    let text = std::fs::read_to_string(common::root().join("docs/ir.md")).expect("docs/ir.md exists");
    let start = text.find("    graph {\n").expect("an example");
    let example: Vec<&str> = text[start..].lines().map_while(|line| line.strip_prefix("    ")).collect();
    let example = example.join("\n") + "\n";
    let graph = parse(&example).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(graph.to_text(), example);
}

#[test]
fn an_op_builds_from_its_attributes() {
    let graph = BlockConfig::benchmark().reference_graph(1, 40000).expect("valid");
    for node in graph.nodes() {
        let op = &graph.node(node).op;
        let row = hyenac_ir::Signature::of(op.mnemonic()).expect("elementary");
        let values: Vec<Attribute> = op.attributes().into_iter().map(|(_, value)| value).collect();
        assert_eq!(row.build(&values).as_ref(), Ok(op));
        if !values.is_empty() {
            assert!(row.build(&values[1..]).is_err_and(|e| e.to_string().contains("attributes, found")));
        }
    }
}

#[test]
fn pictures() {
    let text = r#"graph {
      %0 = input "x \"quoted\"" : f32[2, 4]
      %1 = scalar {value = 2.0}
      %2 = region %0, %1 schedule "tile \"8\"" {
        %0 = parameter {index = 0} : f32[2, 4]
        %1 = parameter {index = 1} : f32[] @weights
        %2 = mul %0, %1
        %3 = slice %2 {axis = 1, start = 0, length = 1}
        return %2, %3
      }
      %3 = add %2, %2.1
      return %3, %2.1
    }"#;
    let graph = parse(text).unwrap_or_else(|error| panic!("{error}"));
    insta::with_settings!({
        snapshot_path => common::root().join("snapshots/ir"),
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, { insta::assert_snapshot!("picture", graph.to_dot()) });
    // Every node that an edge names is declared.
    for graph in [graph, BlockConfig::hyenadna().reference_graph(2, 64).expect("valid")] {
        let dot = graph.to_dot();
        let declared: Vec<&str> =
            dot.lines().filter_map(|line| line.trim().split_once(" [label=").map(|(name, _)| name)).collect();
        for line in dot.lines().filter(|line| line.contains(" -> ")) {
            let (from, to) = line.trim().split_once(" -> ").expect("an edge");
            let to = to.split(' ').next().expect("a name");
            assert!(declared.contains(&from) && declared.contains(&to), "{line}");
        }
        assert_eq!(dot.matches('{').count(), dot.matches('}').count());
    }
}
