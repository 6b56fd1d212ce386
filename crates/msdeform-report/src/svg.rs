//! Shapes of pictures, and what pictures of bars have in common: names on the left, panels of bars, a caption.

/// The colours of a picture for light or for dark pages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    /// The end of its file's name.
    pub(crate) name: &'static str,
    ink: &'static str,
    pub(crate) faint: &'static str,
    line: &'static str,
    pub(crate) ours: &'static str,
    pub(crate) bar: &'static str,
    /// Of the page around it, to cut bars with.
    pub(crate) paper: &'static str,
}

pub(crate) const SCHEMES: [Scheme; 2] = [
    Scheme {
        name: "light",
        ink: "#1f2933",
        faint: "#5c6975",
        line: "#d5dbe1",
        ours: "#2563a8",
        bar: "#b3c1cf",
        paper: "#ffffff",
    },
    Scheme {
        name: "dark",
        ink: "#e3e9ef",
        faint: "#98a5b2",
        line: "#3a4550",
        ours: "#6fabee",
        bar: "#50606f",
        paper: "#0d1117",
    },
];

/// Text that cannot become markup.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The shapes of a picture, in the order in which they are drawn.
#[derive(Default)]
pub(crate) struct Shapes(pub(crate) String);

/// The place of a shape. Tenths are finer than a screen.
fn tenths(number: f64) -> f64 {
    (10.0 * number).round() / 10.0
}

/// Each shape is drawn at a place and with `attributes`, which are empty or ` name="value"`.
impl Shapes {
    pub(crate) fn text(&mut self, (x, y): (f64, f64), attributes: &str, text: &str) {
        let ([x, y], text) = ([x, y].map(tenths), escaped(text));
        self.0 += &format!("<text x=\"{x}\" y=\"{y}\"{attributes}>{text}</text>\n");
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), attributes: &str) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(tenths);
        self.0 += &format!("<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"{attributes}/>\n");
    }

    pub(crate) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        let [x, y, width, height] = [x, y, width, height].map(tenths);
        self.0 += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>\n"
        );
    }

    /// A circle with a title, which is shown when it is hovered.
    pub(crate) fn circle(&mut self, (x, y): (f64, f64), r: f64, class: &str, title: &str) {
        let ([x, y, r], title) = ([x, y, r].map(tenths), escaped(title));
        self.0 += &format!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\" class=\"{class}\"><title>{title}</title></circle>\n"
        );
    }

    /// Text along a line: `x`, `y` and the angle of its start.
    pub(crate) fn text_along(&mut self, place: [f64; 3], attributes: &str, text: &str) {
        let ([x, y, angle], text) = (place.map(tenths), escaped(text));
        self.0 += &format!(
            "<text{attributes} transform=\"translate({x} {y}) rotate({angle})\">{text}</text>\n"
        );
    }
}

/// Above the rows, for the titles of the panels.
const TOP: f64 = 46.0;
const ROW: f64 = 33.0;
const BAR: f64 = 21.0;
/// Under the rows, for the caption.
const BOTTOM: f64 = 42.0;

pub(crate) const BOLD: &str = " font-weight=\"700\"";

/// A picture of bars that is being drawn.
pub(crate) struct Bars<'a> {
    width: f64,
    rows: usize,
    pub(crate) scheme: &'a Scheme,
    pub(crate) shapes: Shapes,
}

impl<'a> Bars<'a> {
    pub(crate) fn new(width: f64, rows: usize, scheme: &'a Scheme) -> Self {
        Self { width, rows, scheme, shapes: Shapes::default() }
    }

    fn bottom(&self) -> f64 {
        TOP + ROW * self.rows as f64
    }

    /// The title of a panel, and the line that its bars begin at.
    pub(crate) fn panel(&mut self, x: f64, title: &str) {
        let stroke = format!(" stroke=\"{}\"", self.scheme.line);
        let bottom = self.bottom();
        self.shapes.text((x, 28.0), BOLD, title);
        self.shapes.line((x, TOP - 4.0), (x, bottom), &stroke);
    }

    /// The text of a row that begins at `x`.
    pub(crate) fn label(&mut self, row: usize, x: f64, attributes: &str, text: &str) {
        self.shapes.text((x, TOP + ROW * (row as f64 + 0.5) + 6.5), attributes, text);
    }

    /// The name of a row, which ends at `x`.
    pub(crate) fn name(&mut self, row: usize, x: f64, attributes: &str, text: &str) {
        self.label(row, x, &format!(" text-anchor=\"end\"{attributes}"), text);
    }

    pub(crate) fn bar(&mut self, row: usize, x: f64, length: f64, fill: &str) {
        self.shapes.rect((x, TOP + ROW * row as f64 + (ROW - BAR) / 2.0), (length, BAR), fill);
    }

    /// A gap in a bar that is longer than it is drawn, near its end at `x`.
    pub(crate) fn cut(&mut self, row: usize, x: f64) {
        let (x, y) = (tenths(x - 20.0), TOP + ROW * row as f64 + (ROW - BAR) / 2.0);
        let paper = self.scheme.paper;
        self.shapes.0 +=
            &format!("<path d=\"M{x} {y} l8 0 l-6 {BAR} l-8 0 z\" fill=\"{paper}\"/>\n");
    }

    /// One of two narrow bars of a row, and its label.
    pub(crate) fn half(
        &mut self,
        (row, half): (usize, usize),
        (x, length): (f64, f64),
        fill: &str,
        weight: &str,
        label: &str,
    ) {
        let y = TOP + ROW * (row as f64 + 0.5) - 11.0 + 11.0 * half as f64;
        self.shapes.rect((x, y), (length, 10.0), fill);
        self.shapes.text((x + length + 8.0, y + 9.5), &format!(" font-size=\"12\"{weight}"), label);
    }

    /// The picture, with its title for programs and the caption that people see.
    pub(crate) fn finish(mut self, title: &str, caption: &str) -> String {
        let (width, height) = (self.width, self.bottom() + BOTTOM);
        let faint = format!(" text-anchor=\"end\" font-size=\"16\" fill=\"{}\"", self.scheme.faint);
        self.shapes.text((width, height - 10.0), &faint, caption);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\" font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\" font-size=\"19\" \
             fill=\"{}\">\n<title>{}</title>\n{}</svg>\n",
            self.scheme.ink,
            escaped(title),
            self.shapes.0
        )
    }
}
