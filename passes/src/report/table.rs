//! The report as text, at most [`WIDTH`] columns wide.

use std::fmt::Write;

use hyenac_ir::Binding;

use super::Report;
use crate::target::Basis;

/// The widest line.
pub const WIDTH: usize = 100;

impl Report {
    /// The report as plain text of at most 100 columns.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let fired: usize = self.rules_fired.values().sum();
        line(
            &mut out,
            0,
            &format!(
                "Rewriting: {} after {} rounds, {} classes, {} nodes, {fired} rewrites by {} rules",
                self.stop_reason,
                self.iterations,
                self.classes,
                self.nodes,
                self.rules_fired.len()
            ),
        );
        for (rule, count) in &self.rules_fired {
            line(&mut out, 2, &format!("{count:>5}  {rule}"));
        }
        let how = if self.exact { "exact" } else { "from the beam" };
        line(
            &mut out,
            0,
            &format!(
                "Plan: {how}, {} regions priced, {} fragments given up for bounds",
                self.regions_priced, self.fragments_dropped
            ),
        );
        let _ = writeln!(out, "  node   time us  floor us launches  when     computes");
        for region in &self.regions {
            let when = match (region.binding, self.frozen) {
                (Binding::Weights, true) => "at bind",
                (Binding::Weights, false) => "weights",
                (Binding::Input, _) => "call",
            };
            let measured = if region.basis == Basis::Measured { "*" } else { " " };
            let head = format!(
                "  {:>4} {:>8.2}{measured} {:>9.2} {:>8}  {when:<8} ",
                format!("%{}", region.node),
                region.time_us,
                region.floor_us,
                region.launches
            );
            hang(&mut out, &head, &region.ops);
            let indent = " ".repeat(head.chars().count());
            hang(&mut out, &indent, &format!("({}) -> {}", region.operands.join(", "), region.outputs.join(", ")));
            if !region.schedule.is_empty() {
                hang(&mut out, &indent, &region.schedule);
            }
        }
        let _ = writeln!(out, "  {:>4} {:>8.2}", "sum", self.total_us);
        if self.regions.iter().any(|region| region.basis == Basis::Measured) {
            line(&mut out, 2, "* measured; the other times are modelled");
        }
        for (name, time) in [("direct", self.direct_us), ("fft", self.fft_us)] {
            let mark = if self.convolution.iter().any(|used| used == name) { ", chosen" } else { "" };
            let time = time.map_or("none".to_owned(), |time| format!("{time:.2} us"));
            line(&mut out, 0, &format!("Best plan with the {name} convolution: {time}{mark}"));
        }
        if !self.choices.is_empty() {
            line(&mut out, 0, "Without a choice:");
        }
        for choice in &self.choices {
            hang(&mut out, "  - ", &choice.chosen);
            let cost = match choice.without_us {
                Some(time) => format!("{time:.2} us, {:+.2}, with", time - self.total_us),
                None => "no plan".to_owned(),
            };
            line(&mut out, 4, &cost);
            for instead in &choice.instead {
                hang(&mut out, "      ", instead);
            }
        }
        out
    }
}

fn line(out: &mut String, indent: usize, text: &str) {
    hang(out, &" ".repeat(indent), text);
}

/// Writes text behind a head, wrapped at spaces (or where it must), continued under where it began.
fn hang(out: &mut String, head: &str, text: &str) {
    let indent = head.chars().count();
    let room = WIDTH.saturating_sub(indent).max(1);
    let mut rows: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        let mut rest: Vec<char> = word.chars().collect();
        loop {
            let used = rows.last().map_or(0, |row| row.chars().count());
            let gap = usize::from(used > 0);
            if used + gap + rest.len() <= room {
                if let Some(row) = rows.last_mut() {
                    row.push_str(if gap == 1 { " " } else { "" });
                    row.extend(rest.iter());
                }
                break;
            }
            if used > 0 {
                rows.push(String::new());
                continue;
            }
            if let Some(row) = rows.last_mut() {
                row.extend(rest.drain(..room));
            }
            rows.push(String::new());
        }
    }
    for (number, row) in rows.iter().enumerate() {
        let start = if number == 0 { head.to_owned() } else { " ".repeat(indent) };
        let _ = writeln!(out, "{}", format!("{start}{row}").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_wraps_within_the_width() {
        let mut out = String::new();
        hang(&mut out, "  %7  ", &format!("{} {}", "layer_norm + linear + ".repeat(12), "x".repeat(230)));
        assert!(out.lines().all(|line| line.chars().count() <= WIDTH), "{out}");
        assert_eq!(out.matches("layer_norm").count(), 12);
        assert_eq!(out.matches('x').count(), 230);
    }
}
