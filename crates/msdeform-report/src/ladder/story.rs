//! The ladder as a story: some rungs in the order in which one would try them, each with the line of figures that docs/story.md quotes, and
//! two pictures of all of them.

use askama::Template;
use msdeform_lab::digits::three_digits;

use super::{Cell, Row};
use crate::chart::{Cell as Bar, Chart, Layout, Order, Row as Bars};
use crate::filters;

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
    Some((row, row.main()?))
}

/// The figures of one rung in one line.
#[derive(Template)]
#[template(path = "story.txt")]
pub(crate) struct Stop<'a> {
    cell: Option<(&'a Row, &'a Cell)>,
}

impl<'a> Stop<'a> {
    pub(crate) fn of(rows: &'a [Row], id: &str) -> Self {
        Self { cell: cell(rows, id) }
    }
}

const LAYOUT: Layout = Layout { width: 880.0, names: 290.0, panels: [300.0, 0.0], scale: 430.0 };

/// The bars of each stop that was measured, the last one's name in bold.
fn chart(
    rows: &[Row],
    title: &'static str,
    what: String,
    bars: impl Fn(&Cell) -> Option<Vec<Bar>>,
) -> Chart {
    let bars = STOPS.iter().filter_map(|(id, name)| {
        let cells = bars(cell(rows, id)?.1)?;
        Some(Bars { name: (*name).to_owned(), is_bold: false, cells })
    });
    let mut rows: Vec<Bars> = bars.collect();
    if let Some(last) = rows.last_mut() {
        last.is_bold = true;
    }
    Chart {
        layout: LAYOUT,
        order: Order::Rows,
        title: format!("{title}: {what}"),
        caption: what,
        panels: vec![title],
        legend: Vec::new(),
        rows,
    }
}

/// How long each stop takes, the last one in colour.
pub(crate) fn times_picture(rows: &[Row], device: &str) -> Chart {
    let times = STOPS.iter().filter_map(|(id, _)| Some(cell(rows, id)?.1.us()));
    let longest = times.fold(0.0, f64::max);
    let what = format!("forward, seed workload, f16, {device}; \u{d7} the speed of the first");
    let mut chart = chart(rows, "Time of twelve ways to compute the same", what, |cell| {
        let gain = cell.speedup.map_or_else(String::new, |gain| format!(", {gain:.1}\u{d7}"));
        let label = format!("{} us{gain}", three_digits(cell.us()));
        Some(vec![Bar::bar(LAYOUT.scale * cell.us() / longest, false, label)])
    });
    if let Some(Bars { cells, .. }) = chart.rows.last_mut() {
        cells[0].bars[0].1 = true;
    }
    chart
}

/// What fills the chip at each stop: slots to issue instructions, and the data path of L1.
pub(crate) fn limits_picture(rows: &[Row], device: &str) -> Chart {
    let what = format!("share of the kernel's cycles, {device}");
    let chart = chart(rows, "What fills the chip", what, |cell| {
        let bar = |counter, is_ours| {
            let percent = cell.counter(counter)?;
            Some(Bar::bar(LAYOUT.scale * percent / 100.0, is_ours, format!("{percent:.0} %")))
        };
        Some(vec![bar("l1_percent", true)?, bar("issue_percent", false)?])
    });
    Chart { order: Order::Halves, legend: vec!["L1 data path", "issue slots"], ..chart }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::SCHEMES;
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
        assert_eq!(Stop::of(&[], "fwd_original").to_string(), "Not measured yet.\n");
        for (chart, scheme) in
            [times_picture(&[], "G"), limits_picture(&[], "G")].iter().zip(&SCHEMES)
        {
            let drawn = chart.draw(scheme);
            assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"), "{drawn}");
        }
    }
}
