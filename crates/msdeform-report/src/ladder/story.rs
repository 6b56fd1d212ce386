//! The ladder as a story: some rungs in the order in which one would try them, each with the line of figures that docs/story.md quotes, and
//! two pictures of all of them.

use std::fmt::Write;

use msdeform_bench::digits::three_digits;

use super::tables::{count, error, percent, speedup, worst_error};
use super::{Cell, LAYOUTS, LOCATIONS, Row};
use crate::bars::{Frame, ROW, Scheme, TOP, baseline};

/// The rungs of the story, with what they try in a few words.
pub const STOPS: [(&str, &str); 12] = [
    ("fwd_original", "a thread per channel"),
    ("fwd_simple", "a warp per query"),
    ("fwd_vector_loads", "16 bytes per load"),
    ("fwd_smem_metadata", "place samples once"),
    ("fwd_smem_padded", "levels in shared memory"),
    ("fwd_tma_tile", "tiles by TMA"),
    ("fwd_warp_spec", "specialised warps"),
    ("fwd_tensor_core", "tensor cores"),
    ("fwd_texture", "texture units"),
    ("fwd_spatial_sort", "sorted queries"),
    ("fwd_int8_value", "8-bit values"),
    ("fwd_tile_gather", "what a call gets"),
];

/// What was measured of a rung as it is: local locations, without a border.
fn cell<'a>(rows: &'a [Row], id: &str) -> Option<(&'a Row, &'a Cell)> {
    let row = rows.iter().find(|row| row.name == id)?;
    Some((row, row.cell(LAYOUTS[0], LOCATIONS[1])?))
}

/// A counter of the step that gathers, which comes last.
fn counter(cell: &Cell, name: &str) -> Option<f64> {
    cell.kernels.last()?.get(name)
}

/// The figures of one rung in one line.
#[must_use]
pub fn stop_markdown(rows: &[Row], id: &str) -> String {
    let Some((row, cell)) = cell(rows, id) else { return "Not measured yet.\n".to_owned() };
    let after = cell.us_after_preparation.map_or_else(String::new, |us| {
        format!(" ({} without what the next call could use again)", three_digits(us))
    });
    format!(
        "**{} us**{after}, {} the speed of the original; issue slots {}, L1 data path {}, L1 hits {}, conflicts {}, error {}. \
         [Its page](kernels/{id}.md)\n",
        three_digits(cell.us),
        speedup(cell.speedup),
        percent(counter(cell, "issue_percent")),
        percent(counter(cell, "l1_percent")),
        percent(cell.l1_hit_percent),
        count(cell.bank_conflicts),
        error(worst_error(row)),
    )
}

const NAMES: f64 = 300.0;
const WIDTH: f64 = 880.0;
/// For the number behind a bar.
const LABEL: f64 = 150.0;

/// How long each stop takes, the last one in colour.
#[must_use]
pub fn times_picture(rows: &[Row], device: &str, scheme: Scheme) -> String {
    let stops: Vec<(&str, &Cell)> =
        STOPS.iter().filter_map(|(id, what)| Some((*what, cell(rows, id)?.1))).collect();
    let longest = stops.iter().map(|(_, cell)| cell.us).fold(0.0, f64::max);
    let bars = stops.iter().map(|(what, cell)| {
        let gain = cell.speedup.map_or_else(String::new, |gain| format!(", {gain:.1}\u{d7}"));
        (*what, vec![(cell.us / longest, format!("{} us{gain}", three_digits(cell.us)))])
    });
    let what = format!("forward, seed workload, f16, {device}; \u{d7} the speed of the first");
    draw("Time of twelve ways to compute the same", &bars.collect::<Vec<_>>(), &[], &what, scheme)
}

/// What fills the chip at each stop: slots to issue instructions, and the data path of L1.
#[must_use]
pub fn limits_picture(rows: &[Row], device: &str, scheme: Scheme) -> String {
    let bars = STOPS.iter().filter_map(|(id, what)| {
        let (_, cell) = cell(rows, id)?;
        let part = |name| {
            let percent = counter(cell, name)?;
            Some((percent / 100.0, format!("{percent:.0} %")))
        };
        Some((*what, vec![part("l1_percent")?, part("issue_percent")?]))
    });
    let legend = ["L1 data path", "issue slots"];
    let what = format!("share of the kernel's cycles, {device}");
    draw("What fills the chip", &bars.collect::<Vec<_>>(), &legend, &what, scheme)
}

/// Parts of a whole, with their labels.
type Bars<'a> = (&'a str, Vec<(f64, String)>);

fn draw(title: &str, rows: &[Bars<'_>], legend: &[&str], what: &str, scheme: Scheme) -> String {
    let frame = Frame { width: WIDTH, rows: rows.len(), colours: &scheme.colours() };
    frame.picture(&format!("{title}: {what}"), what, |out| {
        frame.panel(NAMES, title, out)?;
        draw_rows(&frame, rows, legend, out)
    })
}

fn draw_rows(
    frame: &Frame<'_>,
    rows: &[Bars<'_>],
    legend: &[&str],
    out: &mut String,
) -> std::fmt::Result {
    let (colours, scale) = (frame.colours, WIDTH - NAMES - LABEL);
    let fills = [colours.ours, colours.bar];
    for (number, name) in legend.iter().enumerate() {
        let x = WIDTH - 290.0 + 160.0 * number as f64;
        writeln!(
            out,
            "<rect x=\"{x}\" y=\"15\" width=\"14\" height=\"14\" fill=\"{}\"/>\n\
             <text x=\"{}\" y=\"28\" font-size=\"16\">{name}</text>",
            fills[number % 2],
            x + 20.0
        )?;
    }
    for (index, (name, parts)) in rows.iter().enumerate() {
        let is_last = index + 1 == rows.len();
        let weight = if is_last { " font-weight=\"700\"" } else { "" };
        let middle = TOP + ROW * (index as f64 + 0.5);
        writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\"{weight}>{name}</text>",
            NAMES - 10.0,
            baseline(index)
        )?;
        let bar = 22.0 / parts.len() as f64;
        for (number, (part, label)) in parts.iter().enumerate() {
            let (y, length) = (middle - 11.0 + bar * number as f64, scale * part);
            let fill = match legend.is_empty() {
                true => fills[usize::from(!is_last)],
                false => fills[number % 2],
            };
            let (size, drop) = if parts.len() == 1 { (19, 6.5) } else { (12, 4.0) };
            writeln!(
                out,
                "<rect x=\"{NAMES}\" y=\"{y}\" width=\"{length:.1}\" height=\"{}\" fill=\"{fill}\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"{size}\"{weight}>{label}</text>",
                bar - 1.0,
                NAMES + length + 8.0,
                y + bar / 2.0 + drop
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::variants;

    #[test]
    fn every_stop_is_a_rung_or_what_a_call_gets() {
        for (id, what) in STOPS {
            assert!(variants().any(|spec| spec.id == id), "{id} is no forward variant");
            assert!(!what.is_empty() && !what.contains(['<', '&']));
        }
    }

    #[test]
    fn what_was_not_measured_is_said_and_not_drawn() {
        assert_eq!(stop_markdown(&[], "fwd_original"), "Not measured yet.\n");
        for drawn in
            [times_picture(&[], "G", Scheme::Light), limits_picture(&[], "G", Scheme::Dark)]
        {
            assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"), "{drawn}");
        }
    }

    #[test]
    fn bars_are_parts_of_the_whole_and_the_last_is_ours() {
        let rows = [("a", vec![(1.0, "2 us".to_owned())]), ("b", vec![(0.5, "1 us".to_owned())])];
        let drawn = draw("T", &rows, &[], "w", Scheme::Light);
        let whole = WIDTH - NAMES - LABEL;
        assert!(drawn.contains(&format!("width=\"{whole:.1}\"")), "{drawn}");
        assert!(drawn.contains(&format!("width=\"{:.1}\"", whole / 2.0)), "{drawn}");
        assert_eq!(drawn.matches(Scheme::Light.colours().ours).count(), 1);
    }
}
