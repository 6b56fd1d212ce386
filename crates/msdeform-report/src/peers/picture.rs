//! Ours and the peers on one case as a picture for the README, readable as a thumbnail.

use std::fmt::Write;

use msdeform_bench::digits::{three_digits, time};

use super::{Against, Quantity, Timed};

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
    paper: &'static str,
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

const NAMES: f64 = 214.0;
const PANEL: f64 = 218.0;
const GAP: f64 = 10.0;
const WIDTH: f64 = NAMES + 3.0 * PANEL + 3.0 * GAP;
const TOP: f64 = 46.0;
const ROW: f64 = 33.0;
const BAR: f64 = 21.0;
/// Under the rows, for the line that says what is shown.
const BOTTOM: f64 = 42.0;
/// For the number behind a bar.
const LABEL: f64 = 66.0;

/// The same as another peer under another compiler: in the tables, not here.
const LEFT_OUT: &str = "grid_sample_compiled";

/// How a peer is called where people read it.
fn shown(peer: &str) -> &str {
    match peer {
        "grid_sample" => "PyTorch grid_sample",
        "deformable-detr" => "Deformable-DETR",
        "hf-kernels" => "Hugging Face kernels",
        "flash-deform-attn" => "FlashDeformAttn",
        other => other,
    }
}

/// Forward, backward and training of one case, ours first, then the peers from fast to slow. A bar that would leave its
/// panel is cut, and says so by a gap.
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
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = draw(&rows, &what, &scheme.colours(), &mut out);
    out
}

fn draw(
    rows: &[(&str, [Timed; 3])],
    what: &str,
    colours: &Colours,
    out: &mut String,
) -> std::fmt::Result {
    let Colours { ink, faint, line, .. } = colours;
    let bottom = TOP + ROW * rows.len() as f64;
    let height = bottom + BOTTOM;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\" font-size=\"19\" \
         fill=\"{ink}\">\n\
         <title>Time of forward, backward and training of msdeform and of other implementations: {what}</title>"
    )?;
    for (index, (name, _)) in rows.iter().enumerate() {
        let weight = if index == 0 { " font-weight=\"700\"" } else { "" };
        let y = TOP + ROW * (index as f64 + 0.5) + 6.5;
        writeln!(
            out,
            "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\"{weight}>{name}</text>",
            NAMES - 4.0
        )?;
    }
    for (panel, quantity) in Quantity::ALL.into_iter().enumerate() {
        let x = NAMES + GAP + (PANEL + GAP) * panel as f64;
        writeln!(
            out,
            "<text x=\"{x}\" y=\"28\" font-weight=\"700\">{}</text>\n\
             <line x1=\"{x}\" y1=\"{}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"{line}\"/>",
            quantity.name(),
            TOP - 4.0
        )?;
        let times: Vec<Timed> = rows.iter().map(|(_, times)| times[panel]).collect();
        draw_panel(&times, x, colours, out)?;
    }
    writeln!(
        out,
        "<text x=\"{WIDTH}\" y=\"{}\" text-anchor=\"end\" font-size=\"16\" fill=\"{faint}\">{what}; \
         \u{d7} the time of msdeform</text>\n</svg>",
        height - 10.0
    )
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
        let text = TOP + ROW * (index as f64 + 0.5) + 6.5;
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
