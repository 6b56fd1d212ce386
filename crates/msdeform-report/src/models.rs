//! Whole models before and after the patch as a picture for the Python package's README.

use std::fmt::Write;

use crate::bars::{BAR, Frame, ROW, Scheme, TOP, baseline};

/// One model: how many times as fast each pass is, where it was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpeed {
    /// As people call it.
    pub name: String,
    /// Of inference and of training.
    pub speedups: [Option<f64>; 2],
}

const PASSES: [&str; 2] = ["inference", "training"];
const NAMES: f64 = 220.0;
const PANEL: f64 = 300.0;
const GAP: f64 = 14.0;
const WIDTH: f64 = NAMES + 2.0 * (PANEL + GAP);
/// For the number behind a bar.
const LABEL: f64 = 72.0;

/// The time that is left of each pass, over the time before.
#[must_use]
pub fn picture(models: &[ModelSpeed], what: &str, scheme: Scheme) -> String {
    let frame = Frame { width: WIDTH, rows: models.len(), colours: &scheme.colours() };
    frame.picture(
        &format!("Time of whole models with msdeform, of their time without: {what}"),
        &format!("{what}; grey: before"),
        |out| draw(&frame, models, out),
    )
}

fn draw(frame: &Frame<'_>, models: &[ModelSpeed], out: &mut String) -> std::fmt::Result {
    let colours = frame.colours;
    for (panel, pass) in PASSES.iter().enumerate() {
        frame.panel(NAMES + GAP + (PANEL + GAP) * panel as f64, pass, out)?;
    }
    // As long as the longest: a model that got slower has more than what it had.
    let left = |speedup: f64| 1.0 / speedup;
    let all = models.iter().flat_map(|model| model.speedups).flatten();
    let scale = (PANEL - LABEL) / all.map(left).fold(1.0, f64::max);
    for (index, ModelSpeed { name, speedups }) in models.iter().enumerate() {
        let y = TOP + ROW * index as f64 + (ROW - BAR) / 2.0;
        let text = baseline(index);
        writeln!(
            out,
            "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{name}</text>",
            NAMES - 4.0
        )?;
        for (panel, speedup) in speedups.iter().enumerate() {
            let x = NAMES + GAP + (PANEL + GAP) * panel as f64;
            let Some(speedup) = *speedup else {
                let (x, faint) = (x + 8.0, colours.faint);
                writeln!(out, "<text x=\"{x}\" y=\"{text}\" fill=\"{faint}\">-</text>")?;
                continue;
            };
            let after = scale * left(speedup);
            writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{scale:.1}\" height=\"{BAR}\" fill=\"{}\"/>\n\
                 <rect x=\"{x}\" y=\"{y}\" width=\"{after:.1}\" height=\"{BAR}\" fill=\"{}\"/>\n\
                 <text x=\"{:.1}\" y=\"{text}\">{speedup:.2}\u{d7}</text>",
                colours.bar,
                colours.ours,
                x + scale.max(after) + 8.0
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_what_is_left_of_the_time() {
        let model = |name: &str, speedups| ModelSpeed { name: name.to_owned(), speedups };
        let models = [model("A", [Some(2.0), None]), model("B", [Some(1.0), Some(0.8)])];
        let drawn = picture(&models, "bf16, G", Scheme::Dark);
        // The longest bar is that of what got slower: 1.25 of the time before.
        let whole = (PANEL - LABEL) / 1.25;
        assert!(drawn.contains(&format!("width=\"{:.1}\"", whole / 2.0)), "{drawn}");
        assert!(drawn.contains(&format!("width=\"{:.1}\"", PANEL - LABEL)), "{drawn}");
        assert!(drawn.contains("2.00\u{d7}") && drawn.contains("bf16, G; grey: before"));
        assert_eq!(drawn.matches("<rect").count(), 2 * 3);
        assert!(drawn.ends_with("</svg>\n"));
    }
}
