//! Ours and the peers on one case as a picture for the README, readable as a thumbnail.

use msdeform_lab::digits::{three_digits, time};

use super::{Against, CALLS, PeerRow, TRAINING, Timed};
use crate::svg::{BOLD, Bars, Scheme};

const NAMES: f64 = 214.0;
const PANEL: f64 = 218.0;
const GAP: f64 = 10.0;
const WIDTH: f64 = NAMES + 3.0 * PANEL + 3.0 * GAP;
/// For the number behind a bar.
const LABEL: f64 = 66.0;

/// The same as another peer under another compiler: in the tables, not here.
const LEFT_OUT: &str = "grid_sample_compiled";

/// The name of a peer in the picture.
fn shown(peer: &str) -> &str {
    match peer {
        "grid_sample" => "PyTorch grid_sample",
        "deformable-detr" => "Deformable-DETR",
        "hf-kernels" => "Hugging Face kernels",
        "flash-deform-attn" => "FlashDeformAttn",
        "deformops-triton" => "deformops, Triton",
        "deformops-cuda" => "deformops, CUDA",
        other => other,
    }
}

/// Forward, backward and training of one case, ours first, then the peers from fast to slow. A bar that would leave its
/// panel is cut, which a gap in the bar shows.
pub(crate) fn picture(case: &Against, device: &str, scheme: &Scheme) -> String {
    let mut peers: Vec<&PeerRow> = case.peers.iter().filter(|peer| peer.peer != LEFT_OUT).collect();
    peers.sort_by(|a, b| a.times[TRAINING].us.total_cmp(&b.times[TRAINING].us));
    let mut bars = Bars::new(WIDTH, 1 + peers.len(), scheme);
    bars.name(0, NAMES - 4.0, BOLD, "msdeform");
    for (index, peer) in peers.iter().enumerate() {
        bars.name(1 + index, NAMES - 4.0, "", shown(&peer.peer));
    }
    for (panel, call) in CALLS.into_iter().enumerate() {
        let x = NAMES + GAP + (PANEL + GAP) * panel as f64;
        bars.panel(x, call);
        let ours = Timed { us: case.ours_us[panel], is_exact: true };
        let times = std::iter::once(ours).chain(peers.iter().map(|peer| peer.times[panel]));
        draw_panel(&times.collect::<Vec<_>>(), x, &mut bars);
    }
    let what = format!("{}, {}, {device}", case.workload, case.dtype);
    bars.finish(
        &format!("Time of forward, backward and training of msdeform and of other implementations: {what}"),
        &format!("{what}; \u{d7} the time of msdeform"),
    )
}

fn draw_panel(times: &[Timed], x: f64, bars: &mut Bars<'_>) {
    let mut exact: Vec<f64> = times.iter().filter(|t| t.is_exact).map(|t| t.us).collect();
    exact.sort_by(f64::total_cmp);
    // One that takes many times as long as all others must not make theirs unreadable.
    let longest = match exact[..] {
        [.., second, last] if last > 2.0 * second => 1.12 * second,
        [.., last] => last,
        [] => return,
    };
    for (row, Timed { us, is_exact }) in times.iter().enumerate() {
        if !is_exact {
            let faint = format!(" fill=\"{}\"", bars.scheme.faint);
            bars.label(row, x + 8.0, &faint, "not exact");
            continue;
        }
        let length = (PANEL - LABEL) / longest * us.min(longest);
        let (fill, weight, label) = match row {
            0 => (bars.scheme.ours, BOLD, time(*us)),
            _ => (bars.scheme.bar, "", format!("{}\u{d7}", multiple(us / times[0].us))),
        };
        bars.bar(row, x, length, fill);
        bars.label(row, x + length + 8.0, weight, &label);
        if *us > longest {
            bars.cut(row, x + length);
        }
    }
}

/// Two digits are enough to compare bars.
fn multiple(ratio: f64) -> String {
    if ratio < 9.95 { format!("{ratio:.1}") } else { three_digits(ratio.round()).replace(".0", "") }
}
