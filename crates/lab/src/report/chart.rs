//! Charts of lines in SVG: axes, ticks, curves, bands, points, names.

use super::bars::badge;
use super::number::significant;
use super::page::escape;
use crate::model::Durability;

/// Size of the part inside the axes, in the chart's own units. Text is 13 of
/// them high.
const INNER_WIDTH: f64 = 328.0;
const INNER_HEIGHT: f64 = 220.0;
const LEFT: f64 = 66.0;
/// Space right of the axes if no names stand there.
const RIGHT: f64 = 26.0;
/// Height of a name at the end of a curve, and width of one of its letters.
const NAME_HEIGHT: f64 = 15.0;
const NAME_LETTER: f64 = 8.6;
/// Greatest number of letters of a name.
const NAME_MAX: usize = 14;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// How far markers and thick lines reach over the frame.
const OVER: f64 = 7.0;
/// Colours, dashes and markers repeat after this many.
const STYLES: usize = 8;

/// A chart with fewer points says no more than its table.
pub(super) const POINTS_MIN: usize = 5;

/// How values lie along an axis.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Spacing {
    Linear,
    Logarithmic,
}

/// An axis from its lowest to its highest value.
#[derive(Clone)]
pub(super) struct Axis {
    pub(super) title: String,
    pub(super) spacing: Spacing,
    low: f64,
    high: f64,
    /// The largest value. The axis may reach beyond it.
    last: f64,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis that holds all values (finite; positive where logarithmic);
    /// a linear one begins at 0.
    pub(super) fn holding(
        title: &str,
        spacing: Spacing,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            low = low.min(value);
            high = high.max(value);
        }
        if !low.is_finite() || !high.is_finite() {
            (low, high) = (1.0, 10.0);
        }
        let ticks = match spacing {
            Spacing::Linear => {
                low = low.min(0.0);
                if high <= low {
                    high = low + 1.0;
                }
                linear_ticks(low, high)
            }
            Spacing::Logarithmic => {
                low = low.max(f64::MIN_POSITIVE);
                if high <= low * 1.5 {
                    (low, high) = (low / 1.5, low * 1.5);
                }
                log_ticks(low, high)
            }
        };
        let largest = high;
        if spacing == Spacing::Linear
            && let Some(last) = ticks.last()
        {
            high = high.max(*last);
        }
        Self {
            title: title.to_owned(),
            spacing,
            low,
            high,
            last: largest,
            ticks: ticks
                .into_iter()
                .map(|tick| (tick, significant_short(tick)))
                .collect(),
        }
    }

    /// The same axis with other ticks, as far as they lie on it. It ends at the
    /// largest value.
    pub(super) fn with_ticks(mut self, mut ticks: Vec<(f64, String)>) -> Self {
        self.high = self.last;
        ticks.retain(|(place, _)| (self.low..=self.high).contains(place));
        self.ticks = ticks;
        self
    }

    /// 0 to 1 along the axis. Values outside are limited to between -9 and 9.
    fn share(&self, value: f64) -> f64 {
        let share = match self.spacing {
            Spacing::Linear => (value - self.low) / (self.high - self.low),
            Spacing::Logarithmic => {
                (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
            }
        };
        share.clamp(-9.0, 9.0)
    }
}

fn significant_short(value: f64) -> String {
    // Longer ones would reach the title of the axis.
    for (unit, name) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value.abs() >= 1e5 && value.abs() >= unit {
            return format!("{}\u{2009}{name}", significant_short(value / unit));
        }
    }
    let text = significant(value);
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(power * 10.0);
    let first = (low / step).ceil() as i64;
    (first..)
        .map(|index| index as f64 * step)
        .take_while(|tick| *tick < high + step * 0.999)
        .take(12)
        .collect()
}

fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let factors: &[f64] = if last - first > 3 {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let every = ((last - first) / 6).max(1) as usize;
    (first..=last)
        .step_by(every)
        .flat_map(|power| {
            factors
                .iter()
                .map(move |factor| factor * 10_f64.powi(power))
        })
        .filter(|tick| (low * 0.999..=high * 1.001).contains(tick))
        .collect()
}

/// A chart that grows.
pub(super) struct Chart {
    x: Axis,
    y: Axis,
    /// What is cut off at the frame.
    body: String,
    /// Names at the ends of curves: height of the end, name, style.
    names: Vec<(f64, String, usize)>,
    /// Where the axes end.
    right: f64,
    bottom: f64,
    /// Size of all of it.
    width: f64,
    height: f64,
}

/// A name as it stands at the end of a curve. Long names are cut; the legend
/// has them whole.
pub(super) fn shortened(name: &str) -> String {
    let name = name.replacen(" -o ", " ", 1);
    if name.chars().count() <= NAME_MAX {
        return name;
    }
    let begin: String = name.chars().take(NAME_MAX - 1).collect();
    format!("{}\u{2026}", begin.trim_end())
}

impl Chart {
    pub(super) fn new(x: Axis, y: Axis) -> Self {
        Self::with_names(x, y, &[])
    }

    /// A chart with room for these names at the ends of curves.
    pub(super) fn with_names(x: Axis, y: Axis, names: &[&str]) -> Self {
        let longest = names
            .iter()
            .map(|name| shortened(name).chars().count())
            .max();
        let beside = longest.map_or(RIGHT, |letters| 14.0 + NAME_LETTER * letters as f64);
        let inner = INNER_HEIGHT.max(NAME_HEIGHT * names.len() as f64);
        let (right, bottom) = (LEFT + INNER_WIDTH, TOP + inner);
        Self {
            x,
            y,
            body: String::new(),
            names: Vec::new(),
            right,
            bottom,
            width: right + beside,
            height: bottom + BOTTOM,
        }
    }

    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (
            LEFT + self.x.share(x) * (self.right - LEFT),
            self.bottom - self.y.share(y) * (self.bottom - TOP),
        )
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        let placed: Vec<(f64, f64)> = points.iter().map(|point| self.at(*point)).collect();
        for (i, (x, y)) in simplified(&placed).into_iter().enumerate() {
            path.push_str(&format!("{}{x:.1} {y:.1}", if i == 0 { "M" } else { "L" }));
        }
        path
    }

    /// A line through points in the style of a system.
    pub(super) fn course(&mut self, points: &[(f64, f64)], style: usize, class: &str) {
        let path = self.path(points);
        self.body.push_str(&format!(
            "<path class=\"{class} c{}\" d=\"{path}\"/>",
            style % STYLES
        ));
    }

    /// The name of a system beside the end of its curve.
    pub(super) fn name(&mut self, end: (f64, f64), name: &str, style: usize) {
        let (_, y) = self.at(end);
        self.names.push((y, shortened(name), style));
    }

    /// The area between two curves over the same places: (x, low, high).
    pub(super) fn band(&mut self, edges: &[(f64, f64, f64)], style: usize) {
        let upper: Vec<(f64, f64)> = edges.iter().map(|(x, _, high)| (*x, *high)).collect();
        let lower: Vec<(f64, f64)> = edges.iter().rev().map(|(x, low, _)| (*x, *low)).collect();
        let path = format!(
            "{}{}Z",
            self.path(&upper),
            self.path(&lower).replacen('M', "L", 1)
        );
        self.body.push_str(&format!(
            "<path class=\"band f{}\" d=\"{path}\"/>",
            style % STYLES
        ));
    }

    /// A point with an interval, in the marker of a system.
    pub(super) fn point(&mut self, x: f64, y: f64, interval: (f64, f64), style: usize) {
        let ((px, py), (_, low), (_, high)) = (
            self.at((x, y)),
            self.at((x, interval.0)),
            self.at((x, interval.1)),
        );
        let style = style % STYLES;
        self.body.push_str(&format!(
            "<path class=\"error solid c{style}\" d=\"M{px:.1} {low:.1}V{high:.1}\"/>\
             <path class=\"point f{style}\" d=\"{}\"/>",
            marker(style, px, py)
        ));
    }

    /// The chart; `says` describes it for readers who cannot see it.
    pub(super) fn finish(mut self, says: &str) -> String {
        let (right, bottom) = (self.right, self.bottom);
        let mut frame = String::new();
        let mut free = f64::NEG_INFINITY;
        for (tick, label) in &self.x.ticks {
            let (x, _) = self.at((*tick, self.y.low));
            // A long label at the end would reach out of the picture.
            let (anchor, share) = if x > right - 8.0 {
                ("end", 1.0)
            } else {
                ("middle", 0.5)
            };
            frame.push_str(&format!(
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/>"
            ));
            // If there is no room for two, the first one has its label.
            let width = 7.0 * label.chars().count() as f64;
            if x - width * share < free {
                continue;
            }
            free = x + width * (1.0 - share) + 3.0;
            frame.push_str(&format!(
                "<text class=\"axis\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                bottom + 17.0,
                escape(label)
            ));
        }
        for (tick, label) in &self.y.ticks {
            let (_, y) = self.at((self.x.low, *tick));
            frame.push_str(&format!(
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 5.0,
                y + 4.0,
                escape(label)
            ));
        }
        // Names that would cover each other are moved apart.
        self.names.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut above = f64::NEG_INFINITY;
        let mut names = String::new();
        for (index, (y, name, style)) in self.names.iter().enumerate() {
            // The names that follow need their places, too.
            let lowest = bottom - NAME_HEIGHT * (self.names.len() - index - 1) as f64;
            let place = y.max(above + NAME_HEIGHT).min(lowest);
            above = place;
            names.push_str(&format!(
                "<text class=\"name f{}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                style % STYLES,
                right + 9.0,
                place + 4.0,
                escape(name)
            ));
        }
        let middle = f64::midpoint(TOP, bottom);
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" style=\"max-width: {width:.0}px\" role=\"img\" aria-label=\"{}\">{frame}\
             <path class=\"frame\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\
             <svg aria-hidden=\"true\" x=\"{left}\" y=\"{top}\" width=\"{wide}\" height=\"{high}\" \
             viewBox=\"{left} {top} {wide} {high}\">{}</svg>{names}\
             <text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"axis\" text-anchor=\"middle\" transform=\"translate(13 {middle:.1}) rotate(-90)\">{}</text></svg>\n",
            escape(says),
            self.body,
            f64::midpoint(LEFT, right),
            self.height - 8.0,
            escape(&self.x.title),
            escape(&self.y.title),
            width = self.width,
            height = self.height,
            left = LEFT - OVER,
            top = TOP - OVER,
            wide = right - LEFT + 2.0 * OVER,
            high = bottom - TOP + 2.0 * OVER,
        )
    }
}

/// The points between which straight lines pass within a third of a pixel of
/// all others (Douglas and Peucker 1973).
fn simplified(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    const NEAR: f64 = 0.33;
    let Some(last) = points.len().checked_sub(1) else {
        return Vec::new();
    };
    let mut kept = vec![false; points.len()];
    (kept[0], kept[last]) = (true, true);
    let mut spans = vec![(0, last)];
    while let Some((from, to)) = spans.pop() {
        let ((ax, ay), (bx, by)) = (points[from], points[to]);
        let (dx, dy) = (bx - ax, by - ay);
        let squared = dx * dx + dy * dy;
        let distance = |&(x, y): &(f64, f64)| {
            let along = ((x - ax) * dx + (y - ay) * dy) / squared.max(f64::MIN_POSITIVE);
            let along = along.clamp(0.0, 1.0);
            (x - ax - along * dx).hypot(y - ay - along * dy)
        };
        let between = (from + 1..to).map(|index| (distance(&points[index]), index));
        let farthest = between.max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((_, index)) = farthest.filter(|(far, _)| *far > NEAR) {
            kept[index] = true;
            spans.extend([(from, index), (index, to)]);
        }
    }
    let kept_points = points.iter().zip(kept).filter(|(_, kept)| *kept);
    kept_points.map(|(point, _)| *point).collect()
}

/// Eight shapes that differ without colour.
fn marker(style: usize, x: f64, y: f64) -> String {
    let r = 4.0;
    let d = r * 1.25;
    match style {
        0 => format!("M{:.1} {y:.1}a{r} {r} 0 1 0 8 0a{r} {r} 0 1 0 -8 0Z", x - r),
        1 => format!("M{:.1} {:.1}h7v7h-7Z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1}l{d} 9h-10Z", y - d),
        3 => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5Z", y - d),
        4 => format!("M{:.1} {:.1}h10l-5 9Z", x - d, y - 4.0),
        5 => format!(
            "M{:.1} {:.1}h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5Z",
            x - 1.5,
            y - 5.0
        ),
        6 => format!("M{:.1} {:.1}h10v4h-10Z", x - d, y - 2.0),
        _ => format!("M{:.1} {:.1}h4v10h-4Z", x - 2.0, y - d),
    }
}

/// Which line and marker is which system.
pub(super) fn legend(systems: &[(usize, &str, Durability)]) -> String {
    let mut out = String::from("<ul class=\"legend\">");
    for (index, name, durability) in systems {
        let style = index % STYLES;
        out.push_str(&format!(
            "<li><svg viewBox=\"0 0 42 14\" aria-hidden=\"true\"><path class=\"course c{style}\" d=\"M0 7H42\"/>\
             <path class=\"point f{style}\" d=\"{}\"/></svg> {}{}</li>",
            marker(style, 21.0, 7.0),
            escape(name),
            badge(*durability)
        ));
    }
    out.push_str("</ul>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_that_lie_outside_of_an_axis_are_left_out() {
        // Four operations reach no p90.
        let axis = Axis::holding("percentile", Spacing::Linear, [0.1, 0.9])
            .with_ticks(vec![(0.3, "50".to_owned()), (1.0, "90".to_owned())]);
        let labels: Vec<&str> = axis.ticks.iter().map(|(_, label)| &**label).collect();
        assert_eq!(labels, ["50"]);
    }

    #[test]
    fn a_simplified_line_passes_near_all_points() {
        let wave: Vec<(f64, f64)> = (0..2000)
            .map(|i| f64::from(i) * 0.3)
            .map(|x| (x, 80.0 * (x / 40.0).sin()))
            .collect();
        let kept = simplified(&wave);
        assert!((20..200).contains(&kept.len()), "{}", kept.len());
        assert_eq!((kept.first(), kept.last()), (wave.first(), wave.last()));
        for (x, y) in &wave {
            let near = kept.windows(2).any(|ends| {
                let [(ax, ay), (bx, by)] = ends else {
                    return false;
                };
                // Kept in their order: x grows.
                (*ax..=*bx).contains(x) && (ay + (by - ay) * (x - ax) / (bx - ax) - y).abs() < 1.5
            });
            assert!(near, "({x}, {y})");
        }
        assert_eq!(simplified(&[]), []);
        assert_eq!(simplified(&[(1.0, 2.0)]), [(1.0, 2.0)]);
        let line = [(0.0, 0.0), (1.0, 1.0), (5.0, 5.0)];
        assert_eq!(simplified(&line), [line[0], line[2]]);
        // Equal points.
        assert_eq!(simplified(&[(1.0, 1.0); 3]), [(1.0, 1.0); 2]);
    }
}
