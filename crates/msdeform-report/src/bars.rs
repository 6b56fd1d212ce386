//! The common parts of pictures of bars: colours, a title, panels of rows, and a caption.

use std::fmt::{Result, Write};

/// A picture for light or for dark pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

/// What pictures are drawn in.
pub(crate) struct Colours {
    pub(crate) ink: &'static str,
    pub(crate) faint: &'static str,
    pub(crate) line: &'static str,
    pub(crate) ours: &'static str,
    pub(crate) bar: &'static str,
    /// Of the page around it, to cut bars with.
    pub(crate) paper: &'static str,
}

impl Scheme {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Light, Self::Dark];

    /// The end of its file's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    pub(crate) const fn colours(self) -> Colours {
        match self {
            Self::Light => Colours {
                ink: "#1f2933",
                faint: "#5c6975",
                line: "#d5dbe1",
                ours: "#2563a8",
                bar: "#b3c1cf",
                paper: "#ffffff",
            },
            Self::Dark => Colours {
                ink: "#e3e9ef",
                faint: "#98a5b2",
                line: "#3a4550",
                ours: "#6fabee",
                bar: "#50606f",
                paper: "#0d1117",
            },
        }
    }
}

/// Above the rows, for the titles of the panels.
pub(crate) const TOP: f64 = 46.0;
pub(crate) const ROW: f64 = 33.0;
pub(crate) const BAR: f64 = 21.0;
/// Under the rows, for the caption.
const BOTTOM: f64 = 42.0;

/// The height of the text of a row.
pub(crate) fn baseline(row: usize) -> f64 {
    TOP + ROW * (row as f64 + 0.5) + 6.5
}

/// A picture without its bars.
pub(crate) struct Frame<'a> {
    pub(crate) width: f64,
    pub(crate) rows: usize,
    pub(crate) colours: &'a Colours,
}

impl Frame<'_> {
    /// The picture, with what `draw` writes between title and last line.
    pub(crate) fn picture(
        &self,
        title: &str,
        below: &str,
        draw: impl FnOnce(&mut String) -> Result,
    ) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(title, below, draw, &mut out);
        out
    }

    fn write(
        &self,
        title: &str,
        below: &str,
        draw: impl FnOnce(&mut String) -> Result,
        out: &mut String,
    ) -> Result {
        let (width, height) = (self.width, self.bottom() + BOTTOM);
        let Colours { ink, faint, .. } = self.colours;
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\" font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\" font-size=\"19\" \
             fill=\"{ink}\">\n<title>{title}</title>"
        )?;
        draw(out)?;
        writeln!(
            out,
            "<text x=\"{width}\" y=\"{}\" text-anchor=\"end\" font-size=\"16\" fill=\"{faint}\">{below}</text>\n</svg>",
            height - 10.0
        )
    }

    fn bottom(&self) -> f64 {
        TOP + ROW * self.rows as f64
    }

    /// The title of a panel, and the line that its bars begin at.
    pub(crate) fn panel(&self, x: f64, title: &str, out: &mut String) -> Result {
        writeln!(
            out,
            "<text x=\"{x}\" y=\"28\" font-weight=\"700\">{title}</text>\n\
             <line x1=\"{x}\" y1=\"{}\" x2=\"{x}\" y2=\"{}\" stroke=\"{}\"/>",
            TOP - 4.0,
            self.bottom(),
            self.colours.line
        )
    }
}
