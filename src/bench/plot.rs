//! The picture of a benchmark: bars of every case, ours and the peers', over the floors.
//!
//! Times span three orders of magnitude, so the axis is logarithmic. SVG text is text: no font is looked for.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::read::possible;
use super::report::Report;
use super::suite::Case;

/// The picture cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PlotError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> PlotError {
        PlotError(error.to_string())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const BAR: u32 = 15;
/// Between the bars of two cases.
const GAP: u32 = 17;
/// At least.
const LEFT: u32 = 112;
const RIGHT: u32 = 24;
const BOTTOM: u32 = 64;
/// From the first row of the plot to that of the bars, without the legend.
const TITLE: u32 = 66;
const LEGEND_ROW: u32 = 22;
const BARS_HEIGHT: u32 = 440;
const NARROWEST: u32 = 900;

/// Width of a character by its height, on average and on the safe side: no font is at hand.
const CHARACTER: f64 = 0.55;

const INK: RGBColor = RGBColor(38, 38, 38);
const FAINT: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(224, 224, 224);
/// Live and frozen.
const OURS: [RGBColor; 2] = [RGBColor(8, 81, 156), RGBColor(107, 174, 214)];
const THEIRS: [RGBColor; 8] = [
    RGBColor(217, 95, 14),
    RGBColor(254, 178, 104),
    RGBColor(106, 81, 163),
    RGBColor(188, 178, 220),
    RGBColor(35, 132, 67),
    RGBColor(153, 212, 148),
    RGBColor(99, 99, 99),
    RGBColor(189, 189, 189),
];

/// Bars of one colour.
struct Series {
    name: String,
    color: RGBColor,
    /// Time and floor of each case.
    values: Vec<(Option<f64>, Option<f64>)>,
}

/// Draws a report and its comparisons as an SVG document.
///
/// # Errors
/// When there is nothing to draw.
pub fn svg(report: &Report) -> Result<String, PlotError> {
    let shapes = report.shapes();
    let series = series(report, &shapes);
    let values = || series.iter().flat_map(|series| series.values.iter());
    let all = values().flat_map(|&(time, floor)| [time, floor]).flatten();
    let (low, high) = all.fold((f64::INFINITY, 0.0), |(low, high), time| (time.min(low), time.max(high)));
    if !(low.is_finite() && high > 0.0) {
        return Err(PlotError("there is nothing to draw".to_owned()));
    }
    // Room for the numbers above the bars.
    let (low, high) = (tick_below(low), high * (high / low).powf(0.09));

    let best = Best::of(report);
    let left = best.as_ref().map_or(0, |best| width_of(&best.name(), 12.0) + 16).max(LEFT);
    let group = series.len() as u32 * BAR + GAP;
    let width = (left + RIGHT + shapes.len() as u32 * group).max(NARROWEST);
    let legend = legend(&series, values().any(|(_, floor)| floor.is_some()), (left, width - RIGHT));
    let rows = legend.last().map_or(0, |entry| entry.row + 1);
    let top = TITLE + rows * LEGEND_ROW + 12;
    let bottom = top + BARS_HEIGHT;
    let frame = Frame { left: left as i32, right: (width - RIGHT) as i32, bottom: bottom as i32, low, high };

    let mut document = String::new();
    {
        let root = SVGBackend::with_string(&mut document, (width, bottom + BOTTOM)).into_drawing_area();
        root.fill(&WHITE)?;
        draw_titles(&root, report, frame.left)?;
        for entry in &legend {
            draw_legend_entry(&root, entry)?;
        }
        draw_grid(&root, &frame)?;
        let room = f64::from(frame.right - frame.left) / shapes.len() as f64;
        for (index, &case) in shapes.iter().enumerate() {
            let center = (f64::from(frame.left) + room * (index as f64 + 0.5)).round() as i32;
            let mut left = center - (series.len() as u32 * BAR) as i32 / 2;
            for series in &series {
                if let Some(&value) = series.values.get(index) {
                    draw_bar(&root, &frame, left, value, series.color)?;
                }
                left += BAR as i32;
            }
            text(&root, &case.to_string(), (center, frame.bottom + 8), 13.0, INK, (HPos::Center, VPos::Top))?;
            if let Some(ratio) = best.as_ref().and_then(|best| best.ratio(report, case)) {
                let below = (center, frame.bottom + 28);
                text(&root, &format!("{ratio:.2}x"), below, 13.0, OURS[0], (HPos::Center, VPos::Top))?;
            }
        }
        // Over the feet of the bars.
        root.draw(&PathElement::new([(frame.left, frame.bottom), (frame.right, frame.bottom)], INK))?;
        let names = frame.left - 8;
        text(&root, "B x L", (names, frame.bottom + 8), 13.0, FAINT, (HPos::Right, VPos::Top))?;
        if let Some(best) = &best {
            text(&root, &best.name(), (names, frame.bottom + 28), 12.0, OURS[0], (HPos::Right, VPos::Top))?;
        }
        root.present()?;
    }
    Ok(document)
}

/// Where the bars are, in pixels, and between which times.
struct Frame {
    left: i32,
    right: i32,
    bottom: i32,
    low: f64,
    high: f64,
}

impl Frame {
    /// The row of a time.
    fn row(&self, time: f64) -> i32 {
        let share = (time / self.low).ln() / (self.high / self.low).ln();
        self.bottom - (share.clamp(0.0, 1.0) * f64::from(BARS_HEIGHT)).round() as i32
    }
}

fn draw_grid(root: &Area<'_>, frame: &Frame) -> Result<(), PlotError> {
    for tick in ticks(frame.low, frame.high) {
        let y = frame.row(tick);
        root.draw(&PathElement::new([(frame.left, y), (frame.right, y)], GRID))?;
        text(root, &number(tick), (frame.left - 8, y), 13.0, FAINT, (HPos::Right, VPos::Center))?;
    }
    let middle = frame.bottom - BARS_HEIGHT as i32 / 2;
    upright(root, "microseconds, logarithmic", (frame.left - 90, middle), 13.0, FAINT, HPos::Center)
}

/// A time with its number above, and its floor.
fn draw_bar(
    root: &Area<'_>,
    frame: &Frame,
    left: i32,
    (time, floor): (Option<f64>, Option<f64>),
    color: RGBColor,
) -> Result<(), PlotError> {
    let Some(time) = time else { return Ok(()) };
    let (right, y) = (left + BAR as i32 - 1, frame.row(time));
    root.draw(&Rectangle::new([(left, y), (right, frame.bottom)], color.filled()))?;
    upright(root, &number(time), (left + BAR as i32 / 2, y - 4), 10.5, INK, HPos::Left)?;
    floor.map_or(Ok(()), |floor| draw_floor(root, (left, right), frame.row(floor)))
}

/// Our modes, then the peers in the order of the comparisons.
fn series(report: &Report, shapes: &[Case]) -> Vec<Series> {
    let own = report.modes().into_iter().enumerate().map(|(index, mode)| {
        let value = |&case: &Case| {
            let found = report.find(case, mode);
            let floor = found.and_then(|found| found.floor_us).filter(|&floor| possible(floor));
            (found.map(|found| found.median_us), floor)
        };
        let (name, colors) = match &report.software {
            Some(software) => (format!("{software} {mode}"), &THEIRS[..]),
            None => (format!("hyenac {mode}"), &OURS[..]),
        };
        Series { name, color: colors[index % colors.len()], values: shapes.iter().map(value).collect() }
    });
    let mut all: Vec<Series> = own.collect();
    let first = if report.software.is_some() { all.len() } else { 0 };
    let mut names: Vec<&str> = Vec::new();
    for peer in &report.comparisons {
        if names.contains(&peer.peer.as_str()) {
            continue;
        }
        let color = THEIRS[(first + names.len()) % THEIRS.len()];
        names.push(&peer.peer);
        let time = |&case: &Case| {
            let same = report.comparisons.iter().filter(|other| other.peer == peer.peer);
            (same.into_iter().find_map(|other| other.peer_us(case)), None)
        };
        let name = format!("{} {}", peer.software, peer.peer);
        all.push(Series { name, color, values: shapes.iter().map(time).collect() });
    }
    all
}

/// The fastest peer of each case beside the first of our modes.
struct Best<'a> {
    mode: &'a str,
}

impl Best<'_> {
    fn of(report: &Report) -> Option<Best<'_>> {
        let mode = report.modes().first().copied()?;
        report.comparisons.iter().any(|peer| peer.mode == mode).then_some(Best { mode })
    }

    fn name(&self) -> String {
        format!("best peer / {}", self.mode)
    }

    fn ratio(&self, report: &Report, case: Case) -> Option<f64> {
        let ours = report.find(case, self.mode)?.median_us;
        let peers = report.comparisons.iter().filter(|peer| peer.mode == self.mode);
        peers.filter_map(|peer| peer.peer_us(case)).min_by(f64::total_cmp).map(|peer| peer / ours)
    }
}

/// An entry of the legend; the floor has no colour.
struct Entry {
    name: String,
    color: Option<RGBColor>,
    x: u32,
    row: u32,
}

fn legend(series: &[Series], has_floor: bool, (left, right): (u32, u32)) -> Vec<Entry> {
    let floor = has_floor.then(|| ("floor: bytes and flops at the device's peak".to_owned(), None));
    let names = series.iter().map(|series| (series.name.clone(), Some(series.color))).chain(floor);
    let (mut x, mut row) = (left, 0);
    names
        .map(|(name, color)| {
            let needed = 24 + width_of(&name, 13.0) + 22;
            if x > left && x + needed > right {
                (x, row) = (left, row + 1);
            }
            let entry = Entry { name, color, x, row };
            x += needed;
            entry
        })
        .collect()
}

fn draw_legend_entry(root: &Area<'_>, entry: &Entry) -> Result<(), PlotError> {
    let (x, y) = (entry.x as i32, (TITLE + entry.row * LEGEND_ROW + LEGEND_ROW / 2) as i32);
    match entry.color {
        Some(color) => root.draw(&Rectangle::new([(x, y - 6), (x + 14, y + 6)], color.filled()))?,
        None => draw_floor(root, (x, x + 14), y)?,
    }
    text(root, &entry.name, (x + 21, y), 13.0, INK, (HPos::Left, VPos::Center))
}

/// A black line with a white edge, to be seen on any bar.
fn draw_floor(root: &Area<'_>, (left, right): (i32, i32), y: i32) -> Result<(), PlotError> {
    root.draw(&Rectangle::new([(left, y - 2), (right, y + 2)], WHITE.filled()))?;
    root.draw(&Rectangle::new([(left, y - 1), (right, y + 1)], BLACK.filled()))?;
    Ok(())
}

fn draw_titles(root: &Area<'_>, report: &Report, left: i32) -> Result<(), PlotError> {
    let title = format!("HyenaBlock forward pass, {}", report.device.name);
    let how = match report.protocol.clock.as_str() {
        "cuda_events" => "one CUDA graph launch between two events, the L2 flushed before",
        _ => "wall clock around one call",
    };
    let subtitle = format!(
        "median of {}: {how}; {} preset; {} in {} precision",
        report.protocol.repetitions,
        report.variant,
        report.software.as_deref().unwrap_or("hyenac"),
        report.precision
    );
    text(root, &title, (left, 14), 21.0, INK, (HPos::Left, VPos::Top))?;
    text(root, &subtitle, (left, 42), 13.0, FAINT, (HPos::Left, VPos::Top))
}

/// Text of a size in pixels. Characters that XML does not allow become blanks.
fn text(
    root: &Area<'_>,
    content: &str,
    at: (i32, i32),
    size: f64,
    color: RGBColor,
    (horizontal, vertical): (HPos, VPos),
) -> Result<(), PlotError> {
    let style = font(size).color(&color).pos(Pos::new(horizontal, vertical));
    Ok(root.draw(&Text::new(printable(content), at, style))?)
}

/// Text from below to above, centred on its column.
fn upright(
    root: &Area<'_>,
    content: &str,
    at: (i32, i32),
    size: f64,
    color: RGBColor,
    along: HPos,
) -> Result<(), PlotError> {
    let style = font(size).transform(FontTransform::Rotate270).color(&color).pos(Pos::new(along, VPos::Center));
    Ok(root.draw(&Text::new(printable(content), at, style))?)
}

fn width_of(content: &str, size: f64) -> u32 {
    (content.chars().count() as f64 * size * CHARACTER) as u32
}

/// The crate's size of a font is 1.24 times that of the SVG.
fn font(pixels: f64) -> FontDesc<'static> {
    ("sans-serif", pixels * 1.24).into_font()
}

fn printable(content: &str) -> String {
    content.chars().map(|c| if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') { ' ' } else { c }).collect()
}

/// The largest tick below a time.
fn tick_below(time: f64) -> f64 {
    let decade = 10f64.powf(time.log10().floor());
    [5.0, 2.0]
        .into_iter()
        .map(|step| step * decade)
        .find(|&tick| tick < time * 0.95)
        .unwrap_or_else(|| if decade < time * 0.95 { decade } else { decade / 2.0 })
}

/// One, two and five times the powers of ten within the limits.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let all = (first..=last).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)));
    all.filter(|&tick| tick >= low * 0.999 && tick <= high).collect()
}

/// A time in microseconds with two or three digits.
fn number(time: f64) -> String {
    match time {
        t if t >= 999_500.0 => format!("{:.2}M", t / 1e6),
        t if t >= 9_999.5 => format!("{:.0}k", t / 1e3),
        t if t >= 99.95 => format!("{t:.0}"),
        t if (t - t.round()).abs() < 1e-9 => format!("{t:.0}"),
        t => format!("{t:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_within_the_limits() {
        assert_eq!(ticks(2.0, 60.0), [2.0, 5.0, 10.0, 20.0, 50.0]);
        for time in [1e-4, 0.3, 1.0, 1.02, 2.0, 5.2, 9.99, 10.0, 1e16] {
            let below = tick_below(time);
            assert!(below < time && below > time / 6.0, "{below} below {time}");
            assert_eq!(ticks(below, time * 2.0).first(), Some(&below));
        }
    }

    #[test]
    fn numbers_are_short() {
        let written = [2.0, 0.5, 34.04, 99.96, 685.7, 9999.4, 12_345.0, 2.5e6].map(number);
        assert_eq!(written, ["2", "0.5", "34.0", "100", "686", "9999", "12k", "2.50M"]);
    }
}
