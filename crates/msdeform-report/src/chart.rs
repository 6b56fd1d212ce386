//! A picture of bars: names on the left, panels of bars, a caption.

use askama::Template;

use crate::filters;

/// The end of a picture's file name, and its colours: text, faint text, lines, our bars, other bars, the page around it.
pub(crate) type Scheme = (&'static str, [&'static str; 6]);

pub(crate) const SCHEMES: [Scheme; 2] = [
    ("light", ["#1f2933", "#5c6975", "#d5dbe1", "#2563a8", "#b3c1cf", "#ffffff"]),
    ("dark", ["#e3e9ef", "#98a5b2", "#3a4550", "#6fabee", "#50606f", "#0d1117"]),
];

/// Where a chart's parts begin and end.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) width: f64,
    /// Where names end.
    pub(crate) names: f64,
    /// Where the bars of the first panel begin, and from there to the next panel.
    pub(crate) panels: [f64; 2],
    /// The length of a bar of one.
    pub(crate) scale: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The cells of a row stand in panels of their own. A row is drawn after the other.
    Rows,
    /// The same, a panel drawn after the other.
    Panels,
    /// The cells of a row are narrow bars below each other, each with a colour that a legend names.
    Halves,
}

/// What a picture shows.
pub(crate) struct Chart {
    pub(crate) layout: Layout,
    pub(crate) order: Order,
    /// For programs.
    pub(crate) title: String,
    /// For people.
    pub(crate) caption: String,
    /// Titles of the panels.
    pub(crate) panels: Vec<&'static str>,
    /// Names of the colours; there are none unless cells are halves.
    pub(crate) legend: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
}

pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) is_bold: bool,
    pub(crate) cells: Vec<Cell>,
}

/// Bars in one place, and the text behind the longest. Text without a bar is faint.
#[derive(Default)]
pub(crate) struct Cell {
    /// Lengths, and whether a bar has our colour. The first is the lowest.
    pub(crate) bars: Vec<(f64, bool)>,
    /// A gap near the end, because the bar is longer than it is drawn.
    pub(crate) is_cut: bool,
    pub(crate) label: String,
}

impl Cell {
    pub(crate) fn bar(length: f64, is_ours: bool, label: String) -> Self {
        Self { bars: vec![(length, is_ours)], label, is_cut: false }
    }

    pub(crate) fn text(label: &str) -> Self {
        Self { label: label.to_owned(), ..Self::default() }
    }

    fn longest(&self) -> f64 {
        self.bars.iter().map(|(length, _)| *length).fold(0.0, f64::max)
    }
}

/// Heights: of the titles above the rows, of a row, of the caption below the rows.
const TITLES: f64 = 46.0;
const ROW: f64 = 33.0;
const CAPTION: f64 = 42.0;

impl Chart {
    fn bottom(&self) -> f64 {
        TITLES + ROW * self.rows.len() as f64
    }

    /// Where the bars of a panel begin.
    fn x(&self, panel: usize) -> f64 {
        let [first, step] = self.layout.panels;
        first + step * panel as f64
    }

    /// Everything but the caption, as it is drawn.
    fn parts(&self) -> Vec<Part<'_>> {
        // Each with its panel; the names are before the first.
        let titles = self.panels.iter().enumerate();
        let titles = titles.map(|(at, title)| (1 + at, Part::Title(self.x(at), title)));
        let legend = self.legend.iter().enumerate().map(|(at, name)| (0, Part::Legend(at, name)));
        let mut parts: Vec<_> = titles.chain(legend).collect();
        for (at, row) in self.rows.iter().enumerate() {
            let base = TITLES + ROW * at as f64 + 23.0;
            parts.push((0, Part::Name(base, row)));
            parts.extend(row.cells.iter().enumerate().map(|(at, cell)| {
                let place = match self.order {
                    Order::Halves => {
                        let base = base - 8.0 + 11.0 * at as f64;
                        [self.x(0), base - 9.5, 10.0, base]
                    }
                    Order::Rows | Order::Panels => [self.x(at), base - 17.0, 21.0, base],
                };
                (1 + at, Part::Cell(place, row, cell))
            }));
        }
        if self.order == Order::Panels {
            parts.sort_by_key(|(panel, _)| *panel);
        }
        parts.into_iter().map(|(_, part)| part).collect()
    }

    pub(crate) fn draw(&self, (_, colours): &Scheme) -> String {
        Drawing { chart: self, colours: *colours }.to_string()
    }
}

enum Part<'a> {
    /// Where a panel begins, and its title.
    Title(f64, &'a str),
    /// The place of a colour in the legend, and its name.
    Legend(usize, &'a str),
    /// Where the text of a row stands.
    Name(f64, &'a Row),
    /// Start, top and height of a cell's bars, and where its text stands.
    Cell([f64; 4], &'a Row, &'a Cell),
}

#[derive(Template)]
#[template(path = "chart.svg", escape = "none")]
struct Drawing<'a> {
    chart: &'a Chart,
    colours: [&'static str; 6],
}
