//! The page as one HTML file: pictures first, tables folded below; no network, light and dark, on paper and on a phone.

use std::fmt::Write;

use msdeform::Direction;
use msdeform_bench::digits::{three_digits, time};

use super::content::{Bar, ErrorShare, Gain, Group, Page, Panel, SHARES};
use crate::roofline::STYLE as STYLE_OF_PICTURES;
use crate::table::{Cell, Table};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("tables.js");

/// The page as HTML.
#[must_use]
pub fn html(page: &Page) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(page, &mut out);
    out
}

fn write_page(page: &Page, out: &mut String) -> std::fmt::Result {
    let title = escaped(&page.title);
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{STYLE}{STYLE_OF_PICTURES}</style>\n</head>\n<body>\n\
         <main>\n<h1>{title}</h1>\n<p class=\"subtitle\">{}</p>",
        escaped(&page.subtitle)
    )?;
    out.push_str("<div class=\"headlines\">\n");
    for headline in &page.headlines {
        writeln!(
            out,
            "<div><strong>{}</strong><span>{}</span></div>",
            escaped(&headline.figure),
            escaped(&headline.what)
        )?;
    }
    out.push_str("</div>\n");
    for (direction, gains) in &page.gains {
        write_gains(*direction, gains, out)?;
    }
    if let Some(group) = page.ladder() {
        let what = "Every technique as a kernel of its own, slowest first. Blue: what a call gets. The line: what the gather \
                    through L1 takes alone. Short marks: other settings of a rung's knobs.";
        section("ladder", "The ladder", what, out)?;
        write_group(group, out)?;
    }
    if !page.roofline.is_empty() {
        let what = "What memory and arithmetic allow, and where each workload stands.";
        section("roofline", "Roofline", what, out)?;
        writeln!(out, "<figure class=\"wide\">\n{}</figure>", page.roofline)?;
    }
    write_errors(page, out)?;
    if page.panels.iter().any(|panel| !panel.is_ladder) {
        let what = "Of the kernels that a call gets, by Nsight Compute in runs of their own, clocks and caches as in a timed run.";
        section("counters", "Counters", what, out)?;
        for panel in page.panels.iter().filter(|panel| !panel.is_ladder) {
            write_shares(panel, out)?;
        }
    }
    section(
        "tables",
        "Tables",
        "Everything above in numbers, and everything else. A heading sorts.",
        out,
    )?;
    out.push_str("<form id=\"filter\" hidden></form>\n");
    folded("times", "Times", &page.times, out)?;
    folded("every-error", "Errors", &page.errors, out)?;
    folded("every-counter", "Counters", &page.counters, out)?;
    for panel in page.panels.iter().filter(|panel| panel.is_ladder) {
        summary("", "Counters of the ladder", panel.kernels.len(), "kernels", out)?;
        write_shares(panel, out)?;
        out.push_str("</details>\n");
    }
    for of_workload in page.groups.chunk_by(|a, b| a.workload == b.workload) {
        let title = format!("Every variant of {}", of_workload[0].workload);
        summary("", &title, of_workload.len(), "cases", out)?;
        for group in of_workload {
            write_group(group, out)?;
        }
        out.push_str("</details>\n");
    }
    folded("runs", "Runs", &page.runs, out)?;
    summary("environment", "Environment", page.environment.len(), "facts", out)?;
    out.push_str("<dl>\n");
    for (name, fact) in &page.environment {
        writeln!(out, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(fact))?;
    }
    writeln!(out, "</dl>\n</details>\n</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>")
}

fn section(id: &str, title: &str, what: &str, out: &mut String) -> std::fmt::Result {
    writeln!(out, "<h2 id=\"{id}\">{title}</h2>\n<p>{what}</p>")
}

/// Opens something folded, which the caller closes.
fn summary(id: &str, title: &str, count: usize, of: &str, out: &mut String) -> std::fmt::Result {
    let id = if id.is_empty() { String::new() } else { format!(" id=\"{id}\"") };
    writeln!(
        out,
        "<details{id}>\n<summary>{} <small>{count} {of}</small></summary>",
        escaped(title)
    )
}

fn folded(id: &str, title: &str, table: &Table, out: &mut String) -> std::fmt::Result {
    if table.rows.is_empty() {
        return Ok(());
    }
    summary(id, title, table.rows.len(), "rows", out)?;
    out.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for (name, numeric) in &table.columns {
        let class = if *numeric { " class=\"number\"" } else { "" };
        write!(out, "<th{class}><button type=\"button\">{name}</button></th>")?;
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (Cell { text, number }, (_, numeric)) in row.iter().zip(&table.columns) {
            let class = if *numeric { " class=\"number\"" } else { "" };
            let key = number.map_or_else(String::new, |number| format!(" data-key=\"{number}\""));
            write!(out, "<td{class}{key}>{}</td>", escaped(text))?;
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n</details>\n");
    Ok(())
}

/// A bar in its track, with marks on it; all lengths in percent of the track.
struct Track {
    class: &'static str,
    percent: f64,
    title: String,
    floor: Option<f64>,
    settings: Vec<(f64, String)>,
}

impl Track {
    fn new(class: &'static str, share: f64, title: String) -> Self {
        Self { class, percent: percent(share), title, floor: None, settings: Vec::new() }
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        write!(
            out,
            "<span class=\"track\" title=\"{}\"><span class=\"{}\" style=\"width:{:.2}%\"></span>",
            escaped(&self.title),
            self.class,
            self.percent
        )?;
        if let Some(floor) = self.floor {
            write!(out, "<span class=\"floor\" style=\"left:{floor:.2}%\"></span>")?;
        }
        for (at, title) in &self.settings {
            write!(
                out,
                "<span class=\"setting\" style=\"left:{at:.2}%\" title=\"{}\"></span>",
                escaped(title)
            )?;
        }
        out.push_str("</span>");
        Ok(())
    }
}

/// What is no share is drawn as none.
fn percent(share: f64) -> f64 {
    if share.is_finite() { 100.0 * share.clamp(0.0, 1.0) } else { 0.0 }
}

/// A bar of a group, with its dtype and two values after it.
struct GroupedBar<'a> {
    group: &'a str,
    dtype: &'a str,
    track: Track,
    values: [String; 2],
    /// The class of the second value.
    class: &'static str,
}

/// Bars under a heading for each group.
fn write_bars(bars: &[GroupedBar<'_>], out: &mut String) -> std::fmt::Result {
    out.push_str("<div class=\"bars gains\">\n");
    for of_group in bars.chunk_by(|a, b| a.group == b.group) {
        writeln!(out, "<h3>{}</h3>", escaped(of_group[0].group))?;
        for GroupedBar { dtype, track, values: [value, second], class, .. } in of_group {
            write!(out, "<span class=\"format\">{}</span>", escaped(dtype))?;
            track.write(out)?;
            let value = format!("<span class=\"value\">{value}</span>");
            writeln!(out, "{value}<span class=\"{class}\">{second}</span>")?;
        }
    }
    out.push_str("</div>\n");
    Ok(())
}

/// The dispatched variants' times, as a share of the baseline's.
fn write_gains(direction: Direction, gains: &[Gain], out: &mut String) -> std::fmt::Result {
    let has_floors = gains.iter().any(|gain| gain.floor_us.is_some());
    let floors = if has_floors { " The line: what the gather through L1 takes alone." } else { "" };
    let what = format!("What a call takes; the whole track is the baseline's time.{floors}");
    let name = direction.name();
    let title = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
    section(name, &title, &what, out)?;
    let bars = gains.iter().map(|gain| {
        let Gain { workload, dtype, us, baseline_us, floor_us } = gain;
        let floor = floor_us.map(|floor| format!(", L1 floor {}", time(floor))).unwrap_or_default();
        let (us_text, baseline) = (time(*us), time(*baseline_us));
        let title = format!("{workload} {dtype}: {us_text}, baseline {baseline}{floor}");
        let mut track = Track::new("chosen", us / baseline_us, title);
        track.floor = floor_us.map(|floor| percent(floor / baseline_us));
        let values = [us_text, format!("{:.1}\u{d7}", baseline_us / us)];
        GroupedBar { group: workload, dtype, track, values, class: "value strong" }
    });
    write_bars(&bars.collect::<Vec<_>>(), out)
}

fn write_group(group: &Group, out: &mut String) -> std::fmt::Result {
    let times = group.bars.iter().flat_map(|bar| {
        std::iter::once(bar.us).chain(bar.settings.iter().map(|setting| setting.us))
    });
    let longest = times.fold(0.0, f64::max);
    writeln!(
        out,
        "<figure data-workload=\"{}\" data-dtype=\"{}\">\n<figcaption>{}</figcaption>\n<div class=\"bars variants\">",
        escaped(&group.workload),
        escaped(&group.dtype),
        escaped(&group.title)
    )?;
    for bar in &group.bars {
        let Bar { name, us, mad_us, .. } = bar;
        let speedup = bar.speedup.map(|ratio| format!("{ratio:.1}\u{d7}")).unwrap_or_default();
        let error =
            if bar.rel_l2.is_nan() { String::new() } else { format!(", error {:.1e}", bar.rel_l2) };
        let title = format!("{name}: {} +- {}{error}", time(*us), time(*mad_us));
        let class = if bar.dispatched { "chosen" } else { "bar" };
        let mut track = Track::new(class, us / longest, title);
        track.floor = group.floor_us.map(|floor| percent(floor / longest));
        track.settings = bar
            .settings
            .iter()
            .map(|s| (percent(s.us / longest), format!("{name} {}: {}", s.name, time(s.us))))
            .collect();
        write!(out, "<span class=\"name\">{}</span>", escaped(name))?;
        track.write(out)?;
        writeln!(
            out,
            "<span class=\"value\">{}</span><span class=\"value strong\">{speedup}</span>",
            time(*us)
        )?;
    }
    out.push_str("</div>\n</figure>\n");
    Ok(())
}

fn write_errors(page: &Page, out: &mut String) -> std::fmt::Result {
    if page.error_shares.is_empty() {
        return Ok(());
    }
    let what = "Largest relative L2 error against f64 on the same stored inputs, of what calls get; the whole track is what the \
                accuracy contract allows.";
    section("errors", "Errors", what, out)?;
    let bars = page.error_shares.iter().map(|error| {
        let ErrorShare { variant, dtype, rel_l2, bound } = error;
        let (share, title) = (rel_l2 / bound, format!("{variant} {dtype}: {rel_l2:.1e}"));
        let track = Track::new(if share <= 1.0 { "chosen" } else { "over" }, share, title);
        let values = [format!("{rel_l2:.1e}"), format!("of {bound:.0e}")];
        GroupedBar { group: variant, dtype, track, values, class: "value" }
    });
    write_bars(&bars.collect::<Vec<_>>(), out)
}

/// A column of bars for each share, each bar with its number.
fn write_shares(panel: &Panel, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "<figure>\n<figcaption>{}</figcaption>\n<div class=\"bars shares\">\n<span class=\"name\"></span>",
        escaped(&panel.title)
    )?;
    for title in SHARES {
        write!(out, "<span class=\"head\">{title}</span>")?;
    }
    out.push('\n');
    for (name, shares) in &panel.kernels {
        write!(out, "<span class=\"name\">{}</span>", escaped(name))?;
        for (title, share) in SHARES.iter().zip(shares) {
            let Some(share) = share else {
                out.push_str("<span></span><span class=\"value\">-</span>");
                continue;
            };
            let number = three_digits(*share);
            let title = format!("{name}, {title}: {number} %");
            Track::new("bar", share / 100.0, title).write(out)?;
            write!(out, "<span class=\"value\">{number}</span>")?;
        }
        out.push('\n');
    }
    out.push_str("</div>\n</figure>\n");
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
