//! The page as one HTML file: no network, light and dark, readable when printed.

use std::fmt::Write;

use super::page::{Bar, Cell, Group, Page, Panel, Table};
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
        let what =
            "What memory and arithmetic allow, and where each workload stands. Hover for its name.";
        section("roofline", "Roofline", what, out)?;
        writeln!(out, "<figure>\n{}</figure>", page.roofline)?;
    }
    if !page.counters.rows.is_empty() {
        let what = "Read by Nsight Compute in runs of their own, with clocks and caches as in a timed run.";
        section("counters", "Counters", what, out)?;
        for panel in &page.panels {
            shares(panel, out)?;
        }
        table(&page.counters, out)?;
    }
    let what =
        "Slowest first; the line is the time that the L1 gather alone takes. Hover for the spread.";
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
    writeln!(out, "</dl>\n</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>")
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

const ROW: f64 = 26.0;
const NAMES: f64 = 300.0;
const BARS: f64 = 430.0;
const WIDTH: f64 = NAMES + BARS + 130.0;

fn ladder(group: &Group, out: &mut String) -> std::fmt::Result {
    let longest = group.bars.iter().map(|bar| bar.us).fold(0.0, f64::max);
    let height = ROW * group.bars.len() as f64 + 6.0;
    writeln!(
        out,
        "<figure>\n<figcaption>{0}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\">",
        escaped(&group.title)
    )?;
    for (index, bar) in group.bars.iter().enumerate() {
        draw_bar(bar, ROW * index as f64, longest, out)?;
    }
    if let Some(floor) = group.floor_us.filter(|floor| *floor <= longest) {
        let x = NAMES + BARS * floor / longest;
        writeln!(
            out,
            "<line class=\"floor\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{height}\">\
             <title>L1 floor {}</title></line>",
            time(floor)
        )?;
    }
    out.push_str("</svg>\n</figure>\n");
    Ok(())
}

/// Bars of percent, each with its number.
fn shares(panel: &Panel, out: &mut String) -> std::fmt::Result {
    let height = ROW * panel.shares.len() as f64 + 6.0;
    writeln!(
        out,
        "<figure>\n<figcaption>{0}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\">",
        escaped(panel.title)
    )?;
    for (index, share) in panel.shares.iter().enumerate() {
        let y = ROW * index as f64;
        let text = y + ROW - 9.0;
        let length = BARS * share.percent.clamp(0.0, 100.0) / 100.0;
        writeln!(
            out,
            "<g><title>{0}: {1} %</title>\
             <text x=\"{2}\" y=\"{text}\" text-anchor=\"end\">{0}</text>\
             <rect class=\"bar\" x=\"{NAMES}\" y=\"{3}\" width=\"{length:.1}\" height=\"{4}\" rx=\"2\"/>\
             <text x=\"{5:.1}\" y=\"{text}\">{1} %</text></g>",
            escaped(&share.name),
            three_digits(share.percent),
            NAMES - 8.0,
            y + 4.0,
            ROW - 8.0,
            NAMES + length + 6.0
        )?;
    }
    out.push_str("</svg>\n</figure>\n");
    Ok(())
}

fn draw_bar(bar: &Bar, y: f64, longest: f64, out: &mut String) -> std::fmt::Result {
    let length = if longest > 0.0 { BARS * bar.us / longest } else { 0.0 };
    let class = if bar.dispatched { "chosen" } else { "bar" };
    let speedup = bar.speedup.map_or_else(String::new, |s| format!(", {}x", three_digits(s)));
    let error =
        if bar.rel_l2.is_nan() { String::new() } else { format!(", error {:.1e}", bar.rel_l2) };
    let text = y + ROW - 9.0;
    writeln!(
        out,
        "<g><title>{0}: {1} +- {2}{speedup}{error}</title>\
         <text x=\"{3}\" y=\"{text}\" text-anchor=\"end\">{0}</text>\
         <rect class=\"{class}\" x=\"{NAMES}\" y=\"{4}\" width=\"{length:.1}\" height=\"{5}\" rx=\"2\"/>\
         <text x=\"{6:.1}\" y=\"{text}\">{1}{speedup}</text></g>",
        escaped(&bar.name),
        time(bar.us),
        time(bar.mad_us),
        NAMES - 8.0,
        y + 4.0,
        ROW - 8.0,
        NAMES + length + 6.0
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
