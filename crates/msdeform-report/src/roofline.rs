//! The roofline as a picture.

use minijinja::context;
use minijinja::value::Value;
use msdeform_lab::digits::three_digits;
use msdeform_lab::{Analysis, Ceilings, RecordError};

use crate::render::render;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 64.0;
const RADIUS: f64 = 6.0;
/// From a mark to its label, from a label to the next, and width of a letter.
const LABEL_X: f64 = 22.0;
const LABEL_HEIGHT: f64 = 15.0;
/// Between a label and its neighbour.
const LABEL_GAP: f64 = 12.0;
const LETTER: f64 = 7.5;

/// Ranges of both axes, in powers of ten.
struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

impl Axes {
    fn x(&self, flop_per_byte: f64) -> f64 {
        let share = (flop_per_byte.log10() - self.x.0) / (self.x.1 - self.x.0);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, tflop_per_s: f64) -> f64 {
        let share = (tflop_per_s.log10() - self.y.0) / (self.y.1 - self.y.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn of(&self, mark: &Mark) -> (f64, f64) {
        (self.x(mark.flop_per_byte), self.y(mark.tflop_per_s))
    }
}

/// A call, or one way to look at it.
pub(crate) struct Mark {
    pub flop_per_byte: f64,
    pub tflop_per_s: f64,
    /// Shown when hovered.
    pub title: String,
    /// Shown next to it, where there is room.
    pub label: String,
    /// An empty circle instead of a full one.
    pub is_hollow: bool,
}

/// A log-log roofline: the limits of memory and arithmetic, and the call under them. Light and dark.
pub fn roofline_svg(analysis: &Analysis, ceilings: &Ceilings) -> Result<String, RecordError> {
    let Analysis { workload, dtype, direction, locations, device, .. } = analysis;
    let title = format!("{workload} {dtype} {direction} {locations}, {device}");
    let marks = analysis.measured.as_ref().map_or_else(Vec::new, |measured| {
        let tflop_per_s = analysis.flop / measured.median_us * 1e-6;
        let mark = |flop_per_byte, what: &str| Mark {
            flop_per_byte,
            tflop_per_s,
            title: format!("{}: {} us", measured.variant, three_digits(measured.median_us)),
            label: format!("{} TFLOP/s against {what} bytes", three_digits(tflop_per_s)),
            is_hollow: false,
        };
        vec![
            mark(analysis.flop_per_gathered_byte, "gathered"),
            mark(analysis.flop_per_compulsory_byte, "compulsory"),
        ]
    });
    draw(&title, &analysis.problem, ceilings, &marks, false)
}

/// Memories that may have been measured, each with its name.
const MEMORIES: [(&str, &str); 5] = [
    ("dram_copy", "DRAM"),
    ("l2_gather_line", "L2 gather"),
    ("l1_gather_line", "L1 gather"),
    ("l2_copy", "L2 copy"),
    ("l1d_copy", "L1 copy"),
];

/// A log-log picture of limits and marks, in a page, whose style has the colours, or else in a file of its own.
pub(crate) fn draw(
    title: &str,
    subtitle: &str,
    ceilings: &Ceilings,
    marks: &[Mark],
    is_in_page: bool,
) -> Result<String, RecordError> {
    // What arithmetic allows, in TFLOP/s. A CPU is three decades below a GPU.
    let peak = ceilings.ceiling("fma_f32");
    let y = if peak.unwrap_or(1.0) < 5.0 { (-4.0, 1.0) } else { (0.0, 2.2) };
    let axes = Axes { x: (-1.0, 2.3), y };
    let measured = MEMORIES
        .iter()
        .filter_map(|(ceiling, name)| Some(slope(&axes, ceilings.ceiling(ceiling)?, name, peak)));
    // The line of the peak begins at the end of the fastest memory's.
    let fastest = ["l1_gather_line", "l1d_copy"].iter().find_map(|name| ceilings.ceiling(name));
    let peak_line = peak.map(|peak| {
        let start = peak * 1e3 / fastest.unwrap_or(peak * 1e3);
        context! { x => axes.x(start), y => axes.y(peak), value => three_digits(peak) }
    });
    let decades = |(from, to): (f64, f64)| (from as i32..=to as i32).map(|e| 10f64.powi(e));
    let columns = decades(axes.x).map(|value| context! { value, x => axes.x(value) });
    let lines = decades(axes.y).map(|value| context! { value, y => axes.y(value) });
    let spots = spread(marks, &axes).into_iter();
    let placed = marks.iter().zip(spots).map(|(mark, spot)| {
        let ((x, y), side) = (axes.of(mark), if spot.is_left { -1.0 } else { 1.0 });
        let Mark { title, label, is_hollow, .. } = mark;
        context! { x, y, side, title, label, label_y => spot.y, is_hollow }
    });
    let values = context! {
        title, subtitle, is_in_page, peak_line,
        width => WIDTH, height => HEIGHT, left => LEFT, top => TOP,
        right => WIDTH - RIGHT, bottom => HEIGHT - BOTTOM, radius => RADIUS, label_x => LABEL_X,
        slopes => measured.collect::<Vec<_>>(),
        columns => columns.collect::<Vec<_>>(),
        lines => lines.collect::<Vec<_>>(),
        marks => placed.collect::<Vec<_>>(),
    };
    render("roofline.svg", values)
}

/// A memory's line from the left edge up to the arithmetic peak or the top: its ends, and its name with its angle, which
/// begins above the left end, where there are no marks.
fn slope(axes: &Axes, gb_per_s: f64, name: &str, peak: Option<f64>) -> Value {
    let tb_per_s = gb_per_s * 1e-3;
    let top = peak.unwrap_or(10f64.powf(axes.y.1));
    let start = (10f64.powf(axes.x.0)).max(10f64.powf(axes.y.0) / tb_per_s);
    let end = (top / tb_per_s).min(10f64.powf(axes.x.1));
    let at = |x: f64| (axes.x(x), axes.y(x * tb_per_s));
    let ((x1, y1), (x2, y2)) = (at(start), at(end));
    let name_y = y1 + 14.0 / (x2 - x1) * (y2 - y1) - 7.0;
    let angle = (y2 - y1).atan2(x2 - x1).to_degrees();
    let name = format!("{name}, {} TB/s", three_digits(tb_per_s));
    context! { x1, y1, x2, y2, name, name_x => x1 + 14.0, name_y, angle }
}

/// The place of a mark's label.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spot {
    /// Left of its mark instead of right.
    is_left: bool,
    y: f64,
}

/// The labels of marks: each right of its mark or else left of it, at its height; where other labels or marks are in the
/// way on both sides, right of it and below them.
fn spread(marks: &[Mark], axes: &Axes) -> Vec<Spot> {
    let mut spots: Vec<Spot> =
        marks.iter().map(|mark| Spot { is_left: false, y: axes.of(mark).1 }).collect();
    // From, to, and at what height.
    let around =
        |mark: &Mark| (axes.of(mark).0 - RADIUS, axes.of(mark).0 + RADIUS, axes.of(mark).1);
    let mut taken: Vec<(f64, f64, f64)> = marks.iter().map(around).collect();
    let mut labelled: Vec<usize> =
        (0..marks.len()).filter(|&index| !marks[index].label.is_empty()).collect();
    labelled.sort_by(|&a, &b| spots[a].y.total_cmp(&spots[b].y));
    for index in labelled {
        let x = axes.of(&marks[index]).0;
        let length = LETTER * marks[index].label.chars().count() as f64;
        let right = (x + LABEL_X, x + LABEL_X + length);
        let left = (x - LABEL_X - length, x - LABEL_X);
        let in_the_way = |(start, end): (f64, f64), y: f64, taken: &[(f64, f64, f64)]| {
            let collides = |&&(from, to, at): &&(f64, f64, f64)| {
                from < end + LABEL_GAP && start - LABEL_GAP < to && (at - y).abs() < LABEL_HEIGHT
            };
            taken.iter().find(collides).map(|(_, _, at)| *at)
        };
        let own = spots[index].y;
        let is_left = in_the_way(right, own, &taken).is_some()
            && in_the_way(left, own, &taken).is_none()
            && left.0 > LEFT;
        let sides = if is_left { left } else { right };
        let mut y = own;
        while let Some(at) = in_the_way(sides, y, &taken) {
            // A little more, so that rounding cannot leave it where it is.
            y = at + LABEL_HEIGHT + 0.1;
        }
        spots[index] = Spot { is_left, y };
        taken.push((sides.0, sides.1, y));
    }
    spots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_logarithmic_and_text_cannot_break_the_picture() {
        let axes = Axes { x: (-1.0, 3.0), y: (-1.0, 3.0) };
        assert!((axes.x(0.1) - LEFT).abs() < 1e-9);
        assert!((axes.x(1000.0) - (WIDTH - RIGHT)).abs() < 1e-9);
        assert!((axes.x(10.0) - (axes.x(1.0) + axes.x(100.0)) / 2.0).abs() < 1e-9);
        assert!(axes.y(1000.0) < axes.y(1.0));
        let ceilings = msdeform_lab::fixtures::ceilings_of("test-chip-2c");
        let drawn = draw("a<b>&c", "", &ceilings, &[], true).unwrap();
        assert!(drawn.contains(">a&lt;b&gt;&amp;c</text>"));
    }

    #[test]
    fn labels_of_marks_in_one_place_stand_beside_and_below_each_other() {
        let axes = Axes { x: (-1.0, 3.0), y: (-1.0, 3.0) };
        let mark = |tflop_per_s, label: &str| Mark {
            flop_per_byte: 1.0,
            tflop_per_s,
            title: String::new(),
            label: label.to_owned(),
            is_hollow: false,
        };
        let marks = [mark(10.0, "a"), mark(10.0, "b"), mark(10.0, "c"), mark(100.0, "d")];
        let found = spread(&marks, &axes);
        let (y, top) = (axes.y(10.0), axes.y(100.0));
        let spot = |is_left, y| Spot { is_left, y };
        assert_eq!(
            (found[0], found[1], found[3]),
            (spot(false, y), spot(true, y), spot(false, top))
        );
        assert!(!found[2].is_left && (found[2].y - y - LABEL_HEIGHT).abs() < 1.0, "{found:?}");
    }
}
