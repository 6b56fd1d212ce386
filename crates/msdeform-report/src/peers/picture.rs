//! Ours and the peers on one case as a picture for the README, readable as a thumbnail.

use msdeform_lab::digits::{three_digits, time};

use super::{Against, CALLS, CALLS_AT, PeerRow, TRAINING, Timed};
use crate::chart::{Bar, Chart, Layout, Line};

const LAYOUT: Layout = Layout { width: 898.0, names: 210.0, panels: [224.0, 228.0], scale: 152.0 };

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

/// Forward, backward and training of one case, ours first, then the peers from fast to slow.
pub(crate) fn picture(case: &Against, device: &str) -> Chart {
    let mut peers: Vec<&PeerRow> = case.peers.iter().filter(|peer| peer.peer != LEFT_OUT).collect();
    peers.sort_by(|a, b| a.times[TRAINING].us.total_cmp(&b.times[TRAINING].us));
    let ours = case.ours_us.map(|us| Timed { us, is_exact: true });
    let peers = peers.into_iter().map(|peer| (shown(&peer.peer), peer.times));
    let all: Vec<_> = std::iter::once(("msdeform", ours)).chain(peers).collect();
    let longest = CALLS_AT.map(|call| longest(all.iter().map(|(_, times)| times[call])));
    let lines = all.iter().enumerate().map(|(row, (name, times))| Line {
        name: (*name).to_owned(),
        is_bold: row == 0,
        bars: CALLS_AT.map(|call| bar(times[call], ours[call].us, longest[call], row == 0)).into(),
    });
    let what = format!("{}, {}, {device}", case.workload, case.dtype);
    Chart {
        layout: LAYOUT,
        lines: lines.collect(),
        panels: CALLS.to_vec(),
        legend: Vec::new(),
        title: format!(
            "Time of forward, backward and training of msdeform and of other implementations: {what}"
        ),
        caption: format!("{what}; \u{d7} the time of msdeform"),
    }
}

/// The time of the longest bar. A peer that takes many times as long as all others must not make theirs unreadable: its
/// bar is cut.
fn longest(times: impl Iterator<Item = Timed>) -> f64 {
    let mut exact: Vec<f64> = times.filter(|time| time.is_exact).map(|time| time.us).collect();
    exact.sort_by(f64::total_cmp);
    match exact[..] {
        [.., second, last] if last > 2.0 * second => 1.12 * second,
        [.., last] => last,
        [] => f64::NAN,
    }
}

fn bar(Timed { us, is_exact }: Timed, ours_us: f64, longest: f64, is_ours: bool) -> Bar {
    if !is_exact {
        return Bar::text("not exact");
    }
    let label = if is_ours { time(us) } else { format!("{}\u{d7}", multiple(us / ours_us)) };
    let bar = Bar::new(LAYOUT.scale / longest * us.min(longest), is_ours, label);
    Bar { is_cut: us > longest, ..bar }
}

/// Two digits are enough to compare bars.
fn multiple(ratio: f64) -> String {
    if ratio < 9.95 { format!("{ratio:.1}") } else { three_digits(ratio.round()).replace(".0", "") }
}
