//! The roofline as a picture.

use msdeform_lab::digits::three_digits;
use msdeform_lab::{Analysis, Ceilings};

use crate::svg::Shapes;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 64.0;
const RADIUS: f64 = 6.0;
/// From where a memory's line begins to its name.
const NAME_X: f64 = 14.0;
/// From a mark to its label, from a label to the next, and width of a letter.
const LABEL_X: f64 = 22.0;
const LABEL_HEIGHT: f64 = 15.0;
/// Between a label and its neighbour.
const LABEL_GAP: f64 = 12.0;
const LETTER: f64 = 7.5;

/// What pictures and pages have in common; colours are variables.
pub(crate) const STYLE: &str = "text { fill: var(--ink) } .grid { stroke: var(--line) } \
    .roof { stroke: var(--chosen); stroke-width: 2; fill: none } .name { fill: var(--chosen) } \
    .mark { fill: var(--floor); stroke: var(--floor); stroke-width: 2 } .hollow { fill: var(--paper) } .leader { stroke: var(--floor) } \
    .label { stroke: var(--paper); stroke-width: 4; paint-order: stroke; stroke-linejoin: round }\n";

/// The colours of a file of its own.
const COLOURS: &str = "svg { --ink: #1c2733; --line: #d7dde3; --paper: #ffffff; --chosen: #2563a8; --floor: #b4451f }\n\
    @media (prefers-color-scheme: dark) { svg { --ink: #dfe6ec; --line: #36414c; --paper: #14191f; --chosen: #7db4f0; \
    --floor: #f0955f } }\n";

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

/// Where a picture is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a file of its own, which knows its colours.
    File,
    /// In a page, whose style has them.
    Page,
}

/// A log-log roofline: the limits of memory and arithmetic, and the call under them. Light and dark.
pub fn roofline_svg(analysis: &Analysis, ceilings: &Ceilings) -> String {
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
    roofline((&title, &analysis.problem), ceilings, &marks, Place::File)
}

/// A roofline with any marks, under a heading and a line.
pub(crate) fn roofline(
    (title, subtitle): (&str, &str),
    ceilings: &Ceilings,
    marks: &[Mark],
    place: Place,
) -> String {
    let peak = ceilings.ceiling("fma_f32");
    // A CPU is three decades below a GPU.
    let y = if peak.unwrap_or(1.0) < 5.0 { (-4.0, 1.0) } else { (0.0, 2.2) };
    let axes = Axes { x: (-1.0, 2.3), y };
    let mut shapes = Shapes::default();
    shapes.text((LEFT, 24.0), " font-size=\"16\" font-weight=\"600\"", title);
    shapes.text((LEFT, 44.0), "", subtitle);
    grid(&axes, &mut shapes);
    for (ceiling, label) in [
        ("dram_copy", "DRAM"),
        ("l2_gather_line", "L2 gather"),
        ("l1_gather_line", "L1 gather"),
        ("l2_copy", "L2 copy"),
        ("l1d_copy", "L1 copy"),
    ] {
        if let Some(gb_per_s) = ceilings.ceiling(ceiling) {
            slope(&axes, gb_per_s, label, peak, &mut shapes);
        }
    }
    if let Some(peak) = peak {
        let (y, right) = (axes.y(peak), WIDTH - RIGHT);
        let fastest = ceilings.ceiling("l1_gather_line").or_else(|| ceilings.ceiling("l1d_copy"));
        let x = axes.x(peak * 1e3 / fastest.unwrap_or(peak * 1e3));
        let label = format!("FMA f32, {} TFLOP/s", three_digits(peak));
        shapes.line((x, y), (right, y), " class=\"roof\"");
        shapes.text((right, y - 8.0), " class=\"name\" text-anchor=\"end\"", &label);
    }
    for (mark, spot) in marks.iter().zip(spread(marks, &axes)) {
        draw_mark(mark, spot, axes.of(mark), &mut shapes);
    }
    let start = match place {
        Place::Page => format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">"),
        Place::File => format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\">\n<style>\n{COLOURS}{STYLE}</style>\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"var(--paper)\"/>"
        ),
    };
    format!("{start}\n{}</svg>\n", shapes.0)
}

/// A mark with its label, if it has one, at the end of a line.
fn draw_mark(mark: &Mark, spot: Spot, (x, y): (f64, f64), shapes: &mut Shapes) {
    if !mark.label.is_empty() {
        let (side, anchor) = if spot.is_left { (-1.0, "end") } else { (1.0, "start") };
        let attributes = format!(" class=\"label\" text-anchor=\"{anchor}\"");
        let label = (x + side * (LABEL_X + 4.0), spot.y + 4.0);
        shapes.line((x, y), (x + side * LABEL_X, spot.y), " class=\"leader\"");
        shapes.text(label, &attributes, &mark.label);
    }
    let class = if mark.is_hollow { "mark hollow" } else { "mark" };
    shapes.circle((x, y), RADIUS, class, &mark.title);
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

fn grid(axes: &Axes, shapes: &mut Shapes) {
    let decades = |range: (f64, f64)| (range.0 as i32..=range.1 as i32).map(|e| 10f64.powi(e));
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for value in decades(axes.x) {
        let x = axes.x(value);
        shapes.line((x, TOP), (x, bottom), " class=\"grid\"");
        shapes.text((x, bottom + 20.0), " text-anchor=\"middle\"", &value.to_string());
    }
    for value in decades(axes.y) {
        let y = axes.y(value);
        shapes.line((LEFT, y), (right, y), " class=\"grid\"");
        shapes.text((LEFT - 8.0, y + 4.0), " text-anchor=\"end\"", &value.to_string());
    }
    let middle = " text-anchor=\"middle\"";
    shapes.text(((LEFT + right) / 2.0, HEIGHT - 18.0), middle, "FLOP per byte");
    shapes.text_along([22.0, (TOP + bottom) / 2.0, -90.0], middle, "TFLOP/s");
}

/// A memory's line, from the left edge up to the arithmetic peak or the top.
fn slope(axes: &Axes, gb_per_s: f64, label: &str, peak: Option<f64>, shapes: &mut Shapes) {
    let tb_per_s = gb_per_s * 1e-3;
    let top = peak.unwrap_or(10f64.powf(axes.y.1));
    let start = (10f64.powf(axes.x.0)).max(10f64.powf(axes.y.0) / tb_per_s);
    let end = (top / tb_per_s).min(10f64.powf(axes.x.1));
    let (x1, y1) = (axes.x(start), axes.y(start * tb_per_s));
    let (x2, y2) = (axes.x(end), axes.y(end * tb_per_s));
    let angle = (y2 - y1).atan2(x2 - x1).to_degrees();
    // At the left end, where there are no marks.
    let along = [x1 + NAME_X, y1 + NAME_X / (x2 - x1) * (y2 - y1) - 7.0, angle];
    let label = format!("{label}, {} TB/s", three_digits(tb_per_s));
    shapes.line((x1, y1), (x2, y2), " class=\"roof\"");
    shapes.text_along(along, " class=\"name\"", &label);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::escaped;

    #[test]
    fn axes_are_logarithmic_and_text_cannot_break_the_picture() {
        let axes = Axes { x: (-1.0, 3.0), y: (-1.0, 3.0) };
        assert!((axes.x(0.1) - LEFT).abs() < 1e-9);
        assert!((axes.x(1000.0) - (WIDTH - RIGHT)).abs() < 1e-9);
        assert!((axes.x(10.0) - (axes.x(1.0) + axes.x(100.0)) / 2.0).abs() < 1e-9);
        assert!(axes.y(1000.0) < axes.y(1.0));
        assert_eq!(escaped("a<b>&c"), "a&lt;b&gt;&amp;c");
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
