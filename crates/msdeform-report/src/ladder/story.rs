//! The ladder as a story: some rungs in the order in which one would try them, each with the line of figures that docs/story.md quotes, and
//! two pictures of all of them.

use msdeform_lab::digits::three_digits;

use super::{Cell, Row};
use crate::chart::{Bar, Chart, Layout, Line};

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

const LAYOUT: Layout = Layout { width: 880.0, names: 290.0, panels: [300.0, 0.0], scale: 430.0 };

/// How long each stop takes, the last one in colour; and what fills the chip: slots to issue instructions, and the data path
/// of L1.
pub(crate) fn pictures(rows: &[Row], device: &str) -> [Chart; 2] {
    let measured = |(id, name): &(&str, &'static str)| {
        let row = rows.iter().find(|row| row.name == *id)?;
        Some((*name, row.cells.get("head_major_local")?))
    };
    let stops: Vec<(&str, &Cell)> = STOPS.iter().filter_map(measured).collect();
    let longest = stops.iter().map(|(_, cell)| cell.us).fold(0.0, f64::max);
    let times = stops.iter().enumerate().map(|(at, (name, cell))| {
        let gain = cell.speedup.map_or_else(String::new, |gain| format!(", {gain:.1}\u{d7}"));
        let label = format!("{} us{gain}", three_digits(cell.us));
        let is_last = at + 1 == stops.len();
        let bar = Bar::new(LAYOUT.scale * cell.us / longest, is_last, label);
        Line { name: (*name).to_owned(), is_bold: is_last, bars: vec![bar] }
    });
    let limits = stops.iter().filter_map(|(name, cell)| {
        let bar = |counter, is_ours| {
            let percent = cell.counters.get(counter)?;
            Some(Bar::new(LAYOUT.scale * percent / 100.0, is_ours, format!("{percent:.0} %")))
        };
        let bars = vec![bar("l1_percent", true)?, bar("issue_percent", false)?];
        Some(Line { name: (*name).to_owned(), is_bold: false, bars })
    });
    let mut limits: Vec<Line> = limits.collect();
    if let Some(last) = limits.last_mut() {
        last.is_bold = true;
    }
    let chart = |title: &'static str, caption: String, legend: &[&'static str], lines| Chart {
        layout: LAYOUT,
        title: format!("{title}: {caption}"),
        caption,
        panels: vec![title],
        legend: legend.to_vec(),
        lines,
    };
    let of_times = format!("forward, seed workload, f16, {device}; \u{d7} the speed of the first");
    let of_limits = format!("share of the kernel's cycles, {device}");
    let legend = ["L1 data path", "issue slots"];
    [
        chart("Time of twelve ways to compute the same", of_times, &[], times.collect()),
        chart("What fills the chip", of_limits, &legend, limits),
    ]
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
}
