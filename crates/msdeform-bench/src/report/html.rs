//! The page as one HTML file: no network, light and dark, readable when printed.

use std::fmt::Write;

use super::page::{Bar, Cell, Group, Page, Panel, SHARES, Table};
use crate::analyze::PICTURE_STYLE;
use crate::overview::{three_digits, time};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("sort.js");

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
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{STYLE}{PICTURE_STYLE}</style>\n</head>\n<body>\n\
         <main>\n<h1>{title}</h1>"
    )?;
    section("times", "Times", "Median of the variant that a call gets. A heading sorts.", out)?;
    table(&page.times, out)?;
    if !page.floors.rows.is_empty() {
        let what = "The gather alone if every byte comes from L1 and if none does, and the tensors once \
                    through DRAM; warm runs of small calls find them in L2.";
        section("floors", "What the chip leaves", what, out)?;
        table(&page.floors, out)?;
    }
    if !page.roofline.is_empty() {
        let what = "What memory and arithmetic allow, and where each workload stands. Hover for locations, layout and time.";
        section("roofline", "Roofline", what, out)?;
        writeln!(out, "<figure>\n{}</figure>", page.roofline)?;
    }
    if !page.counters.rows.is_empty() {
        let what = "Read by Nsight Compute in runs of their own, with clocks and caches as in a timed run. Settings of \
                    knobs stand in the table only.";
        section("counters", "Counters", what, out)?;
        for panel in &page.panels {
            shares(panel, out)?;
        }
        table(&page.counters, out)?;
    }
    let what = "Slowest first; the dashed line is the time that the L1 gather alone takes, short lines are other settings of a \
         variant's knobs. Dark: what a call gets. Hover for the spread.";
    section("ladder", "Every variant", what, out)?;
    for group in &page.groups {
        ladder(group, out)?;
    }
    section("errors", "Errors", "Against the f64 reference on the same stored inputs.", out)?;
    table(&page.errors, out)?;
    section("environment", "Environment", "", out)?;
    out.push_str("<dl>\n");
    for (name, fact) in &page.environment {
        writeln!(out, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(fact))?;
    }
    out.push_str("</dl>\n");
    table(&page.records, out)?;
    writeln!(out, "</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>")
}

fn section(id: &str, title: &str, what: &str, out: &mut String) -> std::fmt::Result {
    writeln!(out, "<h2 id=\"{id}\">{title}</h2>")?;
    if what.is_empty() { Ok(()) } else { writeln!(out, "<p>{what}</p>") }
}

fn table(table: &Table, out: &mut String) -> std::fmt::Result {
    out.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for (name, numeric) in &table.headings {
        let class = if *numeric { " class=\"number\"" } else { "" };
        write!(out, "<th{class}><button type=\"button\">{name}</button></th>")?;
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (Cell { text, number }, (_, numeric)) in row.iter().zip(&table.headings) {
            let class = if *numeric { " class=\"number\"" } else { "" };
            let key = number.map_or_else(String::new, |number| format!(" data-key=\"{number}\""));
            write!(out, "<td{class}{key}>{}</td>", escaped(text))?;
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n");
    Ok(())
}

const ROW: f64 = 20.0;
const WIDTH: f64 = 860.0;
/// Room for the number behind a bar.
const NUMBER: f64 = 130.0;
/// Width of a letter, about.
const LETTER: f64 = 7.3;

/// Room that names need, the longest deciding.
fn room<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    let letters = names.map(|name| name.chars().count()).max().unwrap_or(0);
    (letters as f64 * LETTER + 12.0).min(0.5 * WIDTH)
}

fn start_figure(title: &str, rows: usize, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "<figure>\n<figcaption>{0}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {1}\" role=\"img\" aria-label=\"{0}\">",
        escaped(title),
        ROW * rows as f64 + 6.0
    )
}

fn ladder(group: &Group, out: &mut String) -> std::fmt::Result {
    let times = group.bars.iter().flat_map(|bar| {
        std::iter::once(bar.us).chain(bar.settings.iter().map(|setting| setting.us))
    });
    let longest = times.fold(0.0, f64::max);
    let names = room(group.bars.iter().map(|bar| bar.name.as_str()));
    let scale = if longest > 0.0 { (WIDTH - names - NUMBER) / longest } else { 0.0 };
    start_figure(&group.title, group.bars.len(), out)?;
    for (index, bar) in group.bars.iter().enumerate() {
        draw_bar(bar, ROW * index as f64, names, scale, out)?;
    }
    if let Some(floor) = group.floor_us.filter(|floor| *floor <= longest) {
        writeln!(
            out,
            "<line class=\"floor\" x1=\"{0:.1}\" y1=\"0\" x2=\"{0:.1}\" y2=\"{1}\">\
             <title>L1 floor {2}</title></line>",
            names + scale * floor,
            ROW * group.bars.len() as f64 + 6.0,
            time(floor)
        )?;
    }
    out.push_str("</svg>\n</figure>\n");
    Ok(())
}

/// A column of bars for each share, each bar with its number.
fn shares(panel: &Panel, out: &mut String) -> std::fmt::Result {
    let names = room(panel.kernels.iter().map(|(name, _)| name.as_str()));
    let column = (WIDTH - names) / SHARES.len() as f64;
    start_figure(&panel.title, panel.kernels.len() + 1, out)?;
    for (index, title) in SHARES.iter().enumerate() {
        let x = names + column * index as f64;
        writeln!(out, "<text class=\"faint\" x=\"{x:.1}\" y=\"{}\">{title}, %</text>", ROW - 6.0)?;
    }
    for (index, (name, shares)) in panel.kernels.iter().enumerate() {
        let y = ROW * (index + 1) as f64;
        let text = y + ROW - 6.0;
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{text}\" text-anchor=\"end\">{}</text>",
            names - 8.0,
            escaped(name)
        )?;
        for (index, (title, percent)) in SHARES.iter().zip(shares).enumerate() {
            let Some(percent) = percent else { continue };
            let x = names + column * index as f64;
            // The number needs room too.
            let length = (column - 52.0) * percent.clamp(0.0, 100.0) / 100.0;
            writeln!(
                out,
                "<g><title>{}, {title}: {1} %</title>\
                 <rect class=\"bar\" x=\"{x:.1}\" y=\"{2}\" width=\"{length:.1}\" height=\"{3}\" rx=\"2\"/>\
                 <text x=\"{4:.1}\" y=\"{text}\">{1}</text></g>",
                escaped(name),
                three_digits(*percent),
                y + 3.0,
                ROW - 6.0,
                x + length + 5.0
            )?;
        }
    }
    out.push_str("</svg>\n</figure>\n");
    Ok(())
}

fn draw_bar(bar: &Bar, y: f64, names: f64, scale: f64, out: &mut String) -> std::fmt::Result {
    let class = if bar.dispatched { "chosen" } else { "bar" };
    let speedup = bar.speedup.map_or_else(String::new, |s| format!(", {}x", three_digits(s)));
    let error =
        if bar.rel_l2.is_nan() { String::new() } else { format!(", error {:.1e}", bar.rel_l2) };
    let text = y + ROW - 6.0;
    let furthest = bar.settings.iter().map(|setting| setting.us).fold(bar.us, f64::max);
    writeln!(
        out,
        "<g><title>{0}: {1} +- {2}{speedup}{error}</title>\
         <text x=\"{3:.1}\" y=\"{text}\" text-anchor=\"end\">{0}</text>\
         <rect class=\"{class}\" x=\"{names:.1}\" y=\"{4}\" width=\"{5:.1}\" height=\"{6}\" rx=\"2\"/>\
         <text x=\"{7:.1}\" y=\"{text}\">{1}{speedup}</text></g>",
        escaped(&bar.name),
        time(bar.us),
        time(bar.mad_us),
        names - 8.0,
        y + 3.0,
        scale * bar.us,
        ROW - 6.0,
        names + scale * furthest + 6.0
    )?;
    for setting in &bar.settings {
        writeln!(
            out,
            "<line class=\"setting\" x1=\"{0:.1}\" y1=\"{1}\" x2=\"{0:.1}\" y2=\"{2}\">\
             <title>{3} {4}: {5}</title></line>",
            names + scale * setting.us,
            y + 2.0,
            y + ROW - 2.0,
            escaped(&bar.name),
            escaped(&setting.name),
            time(setting.us)
        )?;
    }
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
