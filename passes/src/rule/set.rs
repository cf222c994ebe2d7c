//! Sets of rules.

use std::sync::OnceLock;

use super::{Rule, RuleError, glob, parse};

/// The built-in rule files.
const FILES: [(&str, &str); 4] = [
    ("fuse.rules", include_str!("../rules/fuse.rules")),
    ("precision.rules", include_str!("../rules/precision.rules")),
    ("layout.rules", include_str!("../rules/layout.rules")),
    ("convolution.rules", include_str!("../rules/convolution.rules")),
];

/// Rules with distinct names, in the order of their files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleSet {
    rules: Vec<Rule>,
}

impl RuleSet {
    /// The built-in rules.
    pub fn builtin() -> RuleSet {
        static BUILTIN: OnceLock<RuleSet> = OnceLock::new();
        let load = || {
            FILES.iter().fold(RuleSet::default(), |set, (file, text)| {
                let rules = RuleSet::parse(file, text).and_then(|rules| set.merge(rules));
                rules.unwrap_or_else(|error| panic!("a built-in rule does not load: {error}"))
            })
        };
        BUILTIN.get_or_init(load).clone()
    }

    /// The rules of a file.
    ///
    /// # Errors
    /// The first thing that is wrong with it, with line and column.
    pub fn parse(file: &str, text: &str) -> Result<RuleSet, RuleError> {
        Ok(RuleSet { rules: parse::rules(file, text)? })
    }

    /// These rules and those.
    ///
    /// # Errors
    /// When a name is in both.
    pub fn merge(mut self, other: RuleSet) -> Result<RuleSet, RuleError> {
        for rule in other.rules {
            if let Some(first) = self.get(&rule.name) {
                let message = format!("rule {} exists already, from {}:{}", rule.name, first.file, first.line);
                return Err(RuleError { file: rule.file, line: rule.line, column: 1, message });
            }
            self.rules.push(rule);
        }
        Ok(self)
    }

    /// These rules but those whose name matches a pattern, in which `*` stands for any characters and `?` for one.
    #[must_use]
    pub fn without(mut self, pattern: &str) -> RuleSet {
        self.rules.retain(|rule| !glob::matches(pattern, &rule.name));
        self
    }

    /// The rule of this name.
    pub fn get(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.name == name)
    }

    /// The rules in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Rule> {
        self.rules.iter()
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules as text that loads to the same rules; part of cache keys.
    pub fn text(&self) -> String {
        self.rules.iter().map(|rule| format!("{rule}\n\n")).collect()
    }
}

impl<'a> IntoIterator for &'a RuleSet {
    type Item = &'a Rule;
    type IntoIter = std::slice::Iter<'a, Rule>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
