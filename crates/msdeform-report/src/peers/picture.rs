//! Ours and the peers on one case as a picture for the README, readable as a thumbnail.

use std::fmt::Write;

use msdeform_bench::digits::{three_digits, time};

use super::{Against, Quantity, Timed};
use crate::bars::{BAR, Colours, Frame, ROW, Scheme, TOP, baseline};

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
#[must_use]
pub fn picture(case: &Against, device: &str, scheme: Scheme) -> String {
    let mut peers: Vec<_> = case.peers.iter().filter(|peer| peer.peer != LEFT_OUT).collect();
    peers.sort_by(|a, b| {
        let all = |peer: &super::PeerRow| peer.time(Quantity::Training).us;
        all(a).total_cmp(&all(b))
    });
    let ours = Quantity::ALL.map(|quantity| Timed { us: case.ours_us(quantity), is_exact: true });
    let mut rows = vec![("msdeform", ours)];
    rows.extend(peers.iter().map(|peer| (shown(&peer.peer), Quantity::ALL.map(|q| peer.time(q)))));
    let what = format!("{}, {}, {device}", case.workload, case.dtype);
    let frame = Frame { width: WIDTH, rows: rows.len(), colours: &scheme.colours() };
    frame.picture(
        &format!(
            "Time of forward, backward and training of msdeform and of other implementations: {what}"
        ),
        &format!("{what}; \u{d7} the time of msdeform"),
        |out| draw(&frame, &rows, out),
    )
}

fn draw(frame: &Frame<'_>, rows: &[(&str, [Timed; 3])], out: &mut String) -> std::fmt::Result {
    for (index, (name, _)) in rows.iter().enumerate() {
        let weight = if index == 0 { " font-weight=\"700\"" } else { "" };
        writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\"{weight}>{name}</text>",
            NAMES - 4.0,
            baseline(index)
        )?;
    }
    for (panel, quantity) in Quantity::ALL.into_iter().enumerate() {
        let x = NAMES + GAP + (PANEL + GAP) * panel as f64;
        frame.panel(x, quantity.name(), out)?;
        let times: Vec<Timed> = rows.iter().map(|(_, times)| times[panel]).collect();
        draw_panel(&times, x, frame.colours, out)?;
    }
    Ok(())
}

fn draw_panel(times: &[Timed], x: f64, colours: &Colours, out: &mut String) -> std::fmt::Result {
    let Colours { ours, bar, faint, paper, .. } = colours;
    let mut exact: Vec<f64> = times.iter().filter(|t| t.is_exact).map(|t| t.us).collect();
    exact.sort_by(f64::total_cmp);
    // One that takes many times as long as all others must not make theirs unreadable.
    let longest = match exact[..] {
        [.., second, last] if last > 2.0 * second => 1.12 * second,
        [.., last] => last,
        [] => return Ok(()),
    };
    let scale = (PANEL - LABEL) / longest;
    for (index, Timed { us, is_exact }) in times.iter().enumerate() {
        let y = TOP + ROW * index as f64 + (ROW - BAR) / 2.0;
        let text = baseline(index);
        if !is_exact {
            writeln!(
                out,
                "<text x=\"{}\" y=\"{text}\" fill=\"{faint}\">not exact</text>",
                x + 8.0
            )?;
            continue;
        }
        let length = scale * us.min(longest);
        let (colour, label) = match index {
            0 => (ours, time(*us)),
            _ => (bar, format!("{}\u{d7}", multiple(us / times[0].us))),
        };
        let weight = if index == 0 { " font-weight=\"700\"" } else { "" };
        writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{length:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\n\
             <text x=\"{:.1}\" y=\"{text}\"{weight}>{label}</text>",
            x + length + 8.0
        )?;
        if *us > longest {
            let cut = x + length - 26.0;
            writeln!(
                out,
                "<path d=\"M{0:.1} {1} l8 0 l-6 {BAR} l-8 0 z\" fill=\"{paper}\"/>",
                cut + 6.0,
                y
            )?;
        }
    }
    Ok(())
}

/// Two digits are enough to compare bars.
fn multiple(ratio: f64) -> String {
    if ratio < 9.95 { format!("{ratio:.1}") } else { three_digits(ratio.round()).replace(".0", "") }
}
