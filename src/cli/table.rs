//! Tables and numbers for people, at most [`WIDTH`] columns wide.

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};

/// Width that every table keeps to, whatever the terminal.
pub const WIDTH: u16 = 100;

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table of text cells under a header; long cells wrap.
pub fn table(header: &[(&str, Align)], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let alignment = |align: Align| match align {
        Align::Left => CellAlignment::Left,
        Align::Right => CellAlignment::Right,
    };
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .force_no_tty()
        .set_width(WIDTH)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(
            header
                .iter()
                .map(|&(name, align)| Cell::new(name).set_alignment(alignment(align)).add_attribute(Attribute::NoBold)),
        );
    for row in rows {
        table.add_row(
            row.into_iter().zip(header).map(|(text, &(_, align))| Cell::new(text).set_alignment(alignment(align))),
        );
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Bytes with a unit of three digits.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut value, mut unit) = (count as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A time given in microseconds, in the unit that reads best.
pub fn micros(time: f64) -> String {
    match time {
        t if t >= 1e6 => format!("{:.2} s", t / 1e6),
        t if t >= 1e3 => format!("{:.2} ms", t / 1e3),
        t => format!("{t:.1} us"),
    }
}

/// A time given in microseconds, in at most seven characters up to a quarter of an hour; without a unit it is in
/// microseconds.
pub fn short_micros(time: f64) -> String {
    match time {
        // The limits are those of what is printed, after rounding.
        t if t >= 999_950.0 => format!("{:.2}s", t / 1e6),
        t if t >= 99_999.95 => format!("{:.1}ms", t / 1e3),
        t => format!("{t:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_keep_to_the_width_and_leave_no_trailing_blanks() {
        let long = "word ".repeat(60);
        let text = table(&[("name", Align::Left), ("us", Align::Right)], [vec![long, "12.5".to_owned()]]);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH as usize && line == line.trim_end()), "{text}");
        assert!(text.contains("12.5"));
    }

    #[test]
    fn units() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
        assert_eq!(micros(12.34), "12.3 us");
        assert_eq!(micros(12_340.0), "12.34 ms");
        assert_eq!(micros(2.5e6), "2.50 s");
        assert_eq!(short_micros(99_999.9), "99999.9");
        assert_eq!(short_micros(999_900.0), "999.9ms");
        assert_eq!(short_micros(999.99e6), "999.99s");
    }
}
