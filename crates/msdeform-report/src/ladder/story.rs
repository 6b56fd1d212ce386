//! The ladder as a story: some rungs in the order in which one would try them, each with the line of figures that docs/story.md quotes, and
//! two pictures of all of them.

use msdeform_lab::digits::three_digits;

use super::tables::{count, percent, speedup, worst_error};
use super::{Cell, LAYOUTS, LOCATIONS, Row};
use crate::svg::{BOLD, Bars, Scheme};

/// The rungs of the story, with what they try in a few words.
pub(crate) const STOPS: [(&str, &str); 12] = [
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

/// The figures of one rung in one line.
pub(crate) fn stop_markdown(rows: &[Row], id: &str) -> String {
    let Some((row, cell)) = cell(rows, id) else { return "Not measured yet.\n".to_owned() };
    let after = cell.measurement.us_after_preparation.map_or_else(String::new, |us| {
        format!(" ({} without what the next call could use again)", three_digits(us))
    });
    format!(
        "**{} us**{after}, {} the speed of the original; issue slots {}, L1 data path {}, L1 hits {}, conflicts {}, error {}. \
         [Its page](kernels/{id}.md)\n",
        three_digits(cell.us()),
        speedup(cell.speedup),
        percent(cell.counter("issue_percent")),
        percent(cell.counter("l1_percent")),
        percent(cell.counter("l1_hit_percent")),
        count(cell.bank_conflicts()),
        worst_error(row),
    )
}

const NAMES: f64 = 300.0;
const WIDTH: f64 = 880.0;
/// For the number behind a bar.
const LABEL: f64 = 150.0;
const SCALE: f64 = WIDTH - NAMES - LABEL;

/// How long each stop takes, the last one in colour.
pub(crate) fn times_picture(rows: &[Row], device: &str, scheme: &Scheme) -> String {
    let stops: Vec<(&str, &Cell)> =
        STOPS.iter().filter_map(|(id, what)| Some((*what, cell(rows, id)?.1))).collect();
    let longest = stops.iter().map(|(_, cell)| cell.us()).fold(0.0, f64::max);
    let title = "Time of twelve ways to compute the same";
    let mut bars = Bars::new(WIDTH, stops.len(), scheme);
    bars.panel(NAMES, title);
    for (row, (what, cell)) in stops.iter().enumerate() {
        let (fill, weight) = match row + 1 == stops.len() {
            true => (scheme.ours, BOLD),
            false => (scheme.bar, ""),
        };
        let gain = cell.speedup.map_or_else(String::new, |gain| format!(", {gain:.1}\u{d7}"));
        let length = SCALE * cell.us() / longest;
        bars.name(row, NAMES - 10.0, weight, what);
        bars.bar(row, NAMES, length, fill);
        let label = format!("{} us{gain}", three_digits(cell.us()));
        bars.label(row, NAMES + length + 8.0, weight, &label);
    }
    let what = format!("forward, seed workload, f16, {device}; \u{d7} the speed of the first");
    bars.finish(&format!("{title}: {what}"), &what)
}

/// What fills the chip at each stop: slots to issue instructions, and the data path of L1.
pub(crate) fn limits_picture(rows: &[Row], device: &str, scheme: &Scheme) -> String {
    let stops = STOPS.iter().filter_map(|(id, what)| {
        let (_, cell) = cell(rows, id)?;
        Some((what, [cell.counter("l1_percent")?, cell.counter("issue_percent")?]))
    });
    let stops: Vec<_> = stops.collect();
    let fills = [scheme.ours, scheme.bar];
    let mut bars = Bars::new(WIDTH, stops.len(), scheme);
    bars.panel(NAMES, "What fills the chip");
    for (at, name) in ["L1 data path", "issue slots"].into_iter().enumerate() {
        let x = WIDTH - 290.0 + 160.0 * at as f64;
        bars.shapes.rect((x, 15.0), (14.0, 14.0), fills[at]);
        bars.shapes.text((x + 20.0, 28.0), " font-size=\"16\"", name);
    }
    for (row, (what, parts)) in stops.iter().enumerate() {
        let weight = if row + 1 == stops.len() { BOLD } else { "" };
        bars.name(row, NAMES - 10.0, weight, what);
        for (half, percent) in parts.iter().enumerate() {
            let length = SCALE * percent / 100.0;
            let label = format!("{percent:.0} %");
            bars.half((row, half), (NAMES, length), fills[half], weight, &label);
        }
    }
    let what = format!("share of the kernel's cycles, {device}");
    bars.finish(&format!("What fills the chip: {what}"), &what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::variants;
    use crate::svg::SCHEMES;

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
        let [light, dark] = &SCHEMES;
        for drawn in [times_picture(&[], "G", light), limits_picture(&[], "G", dark)] {
            assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"), "{drawn}");
        }
    }
}
