//! A picture of bars: names on the left, panels of bars, a caption.

use minijinja::context;
use minijinja::value::Serde;
use msdeform_lab::RecordError;
use serde::Serialize;

use crate::render::render;

/// The end of a picture's file name, and its colours: text, faint text, lines, our bars, other bars, the page around it.
pub(crate) type Scheme = (&'static str, [&'static str; 6]);

pub(crate) const SCHEMES: [Scheme; 2] = [
    ("light", ["#1f2933", "#5c6975", "#d5dbe1", "#2563a8", "#b3c1cf", "#ffffff"]),
    ("dark", ["#e3e9ef", "#98a5b2", "#3a4550", "#6fabee", "#50606f", "#0d1117"]),
];

/// Where a chart's parts begin and end.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Layout {
    pub(crate) width: f64,
    /// Where names end.
    pub(crate) names: f64,
    /// Where the bars of the first panel begin, and from there to the next panel.
    pub(crate) panels: [f64; 2],
    /// The length of a bar of one.
    pub(crate) scale: f64,
}

/// What a picture shows.
#[derive(Serialize)]
pub(crate) struct Chart {
    pub(crate) layout: Layout,
    /// For programs.
    pub(crate) title: String,
    /// For people.
    pub(crate) caption: String,
    /// Titles of the panels.
    pub(crate) panels: Vec<&'static str>,
    /// Names of the colours. With them the bars of a line are narrow and below each other, without them in panels.
    pub(crate) legend: Vec<&'static str>,
    pub(crate) lines: Vec<Line>,
}

#[derive(Serialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) is_bold: bool,
    pub(crate) bars: Vec<Bar>,
}

/// Bars in one place, and the text behind the longest.
#[derive(Serialize)]
pub(crate) struct Bar {
    /// Lengths, and whether a bar has our colour. The first is the lowest.
    pub(crate) parts: Vec<(f64, bool)>,
    pub(crate) length: f64,
    /// A gap near the end, because the bar is longer than it is drawn.
    pub(crate) is_cut: bool,
    pub(crate) label: String,
}

impl Bar {
    pub(crate) fn new(length: f64, is_ours: bool, label: String) -> Self {
        Self { parts: vec![(length, is_ours)], length, is_cut: false, label }
    }

    pub(crate) fn text(label: &str) -> Self {
        Self { parts: Vec::new(), length: 0.0, is_cut: false, label: label.to_owned() }
    }
}

impl Chart {
    pub(crate) fn draw(&self, (_, colours): &Scheme) -> Result<String, RecordError> {
        render("chart.svg", context! { chart => Serde(self), colours => Serde(colours) })
    }
}
