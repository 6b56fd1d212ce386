//! Records as a page for people: one HTML file that needs nothing else, or Markdown.

mod compare;
mod content;
mod html;
mod tables;

pub use compare::{Change, Comparison, Verdict, name_of};
pub use content::Page;
pub use html::html;

use std::fmt::Write;

use msdeform_bench::digits::time;

/// The page as Markdown: the same sections, without pictures.
#[must_use]
pub fn markdown(page: &Page) -> String {
    let mut out = format!("# {}\n\n", page.title);
    // Writing to a String cannot fail.
    let _ = write_markdown(page, &mut out);
    out
}

fn write_markdown(page: &Page, out: &mut String) -> std::fmt::Result {
    writeln!(out, "{}\n", page.subtitle)?;
    for headline in &page.headlines {
        writeln!(out, "- {} {}", headline.figure, headline.what)?;
    }
    writeln!(out, "\n## Times\n\n{}", page.times.markdown())?;
    if !page.counters.rows.is_empty() {
        writeln!(out, "## Counters\n\n{}", page.counters.markdown())?;
    }
    writeln!(out, "## Errors\n\n{}", page.errors.markdown())?;
    writeln!(out, "## By workload\n")?;
    for group in &page.groups {
        writeln!(out, "### {}, {}\n", group.workload, group.title)?;
        for bar in &group.bars {
            let chosen = if bar.dispatched { " (what a call gets)" } else { "" };
            writeln!(out, "- {}: {}{chosen}", bar.name, time(bar.us))?;
            for setting in &bar.settings {
                writeln!(out, "  - {}: {}", setting.name, time(setting.us))?;
            }
        }
        out.push('\n');
    }
    writeln!(out, "## Runs\n\n{}", page.runs.markdown())?;
    writeln!(out, "## Environment\n")?;
    for (name, fact) in &page.environment {
        writeln!(out, "- {name}: {fact}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
