//! The report and the site in a real browser: no errors, tables that sort, the numbers of the records, a search that finds, both colour
//! schemes, a phone, paper.

mod chromium;
mod site;

use anyhow::{Context, Result, ensure};
use msdeform_bench::counters::CounterFile;
use msdeform_bench::digits::time;
use msdeform_bench::{Ceilings, record};
use msdeform_report::overview::overview;
use msdeform_report::page::{self, Page};
use msdeform_report::release;
use serde_json::{Value, json};

use crate::steps::{Count, Report};
use crate::{site as documents, tree};

use chromium::Chromium;

/// Text is readable from this contrast on (WCAG AA).
const LEAST_CONTRAST: f64 = 4.5;

/// What is expected, and how that is found out.
type Check<'a> = (&'static str, &'a dyn Fn(&mut Chromium) -> Result<()>);

/// Opens the report of the committed GPU records and the site, and looks at both.
pub fn test() -> Result<Report> {
    let program = chromium::find()?;
    let folder = tree::cache().join("browser");
    let profile = folder.join("profile");
    if profile.exists() {
        std::fs::remove_dir_all(&profile)?;
    }
    std::fs::create_dir_all(&folder)?;
    let (html, numbers) = page()?;
    let path = folder.join("report.html");
    std::fs::write(&path, html)?;

    let mut browser = Chromium::start(&program, &profile)?;
    for domain in ["Page", "Runtime", "Log", "Network"] {
        browser.ask(&format!("{domain}.enable"), &json!({}))?;
    }
    browser.ask("Page.navigate", &json!({"url": format!("file://{}", path.display())}))?;
    browser.wait_for("Page.loadEventFired")?;

    let checks: [Check<'_>; 9] = [
        ("shows before it tells", &shows_first),
        ("shows the numbers of the records", &|browser| has_numbers(browser, &numbers)),
        ("shows a workload and a format alone", &filters),
        ("sorts every table by click", &sorts),
        ("shows values when hovered", &hovers),
        ("is readable in light and dark", &has_two_schemes),
        ("fits a phone", &fits_a_phone),
        ("prints dark on light, whole tables", &prints),
        // Last: whatever the others provoke counts.
        ("reports no error and asks for nothing outside", &is_quiet),
    ];
    let mut count = look(&mut browser, "report", &checks);

    let pages = documents::build_if_missing()?;
    let checks: [Check<'_>; 5] = [
        ("starts with a picture and leads everywhere", &|browser| site::starts(browser, &pages)),
        ("finds what is typed", &|browser| site::searches(browser, &pages)),
        ("is readable in light and dark", &|browser| site::has_two_schemes(browser, &pages)),
        ("fits a phone and a desk", &|browser| site::fits(browser, &pages)),
        ("reports no error and asks for nothing outside", &is_quiet),
    ];
    count = count.plus(look(&mut browser, "site", &checks));
    let version = browser.ask("Browser.getVersion", &json!({}))?;
    let note = version["product"].as_str().unwrap_or_default().to_owned();
    Ok(Report { count, note })
}

/// Goes through what is expected, all of it even if something is not as it should be.
fn look(browser: &mut Chromium, of: &str, checks: &[Check<'_>]) -> Count {
    let mut count = Count::default();
    for (what, check) in checks {
        match check(browser) {
            Ok(()) => {
                println!("the {of} {what}");
                count.passed += 1;
            }
            Err(error) => {
                println!("FAILED: the {of} {what}: {error:#}");
                count.failed += 1;
            }
        }
    }
    count
}

/// The page of the committed records, and texts that must be in it.
fn page() -> Result<(String, Vec<String>)> {
    let folder = tree::root().join("records");
    let mut records = release::load_releases(&folder)?;
    records.retain(|record| record.device.kind == "cuda");
    let slug = records.last().context("no GPU record is quoted")?.device.slug.clone();
    records.retain(|record| record.device.slug == slug);
    let ceilings = Ceilings::load_all(&folder)?;
    let ceilings = ceilings.iter().find(|ceilings| ceilings.device.slug == slug);
    let counters = CounterFile::of_device(&folder, &slug)?;
    let page =
        Page::of(&records, ceilings, &counters).context("the records hold no measurement")?;
    let rows = overview(&record::newest(&records));
    let numbers: Vec<String> =
        rows.iter().flat_map(|row| row.best.values()).map(|best| time(best.median_us)).collect();
    ensure!(numbers.len() > 10, "only {} numbers to look for", numbers.len());
    Ok((page::html(&page), numbers))
}

fn has_numbers(browser: &mut Chromium, numbers: &[String]) -> Result<()> {
    let cells = "[...document.querySelectorAll('#times td')].map(cell => cell.textContent)";
    let cells = browser.evaluate(cells)?;
    let cells: Vec<&str> =
        cells.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let missing: Vec<&String> =
        numbers.iter().filter(|number| !cells.contains(&number.as_str())).collect();
    ensure!(missing.is_empty(), "{missing:?} are not among {} cells", cells.len());
    Ok(())
}

/// Headlines, bars, the ladder and the roofline are on the page before any table is, and tables are folded.
fn shows_first(browser: &mut Chromium) -> Result<()> {
    let order = "[...document.querySelectorAll('.headlines, #forward, #backward, #ladder, #roofline, #errors, #counters, \
                 #tables, table')].map(element => element.id || element.className || element.localName)";
    let order = browser.evaluate(order)?;
    let order: Vec<&str> =
        order.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let expected =
        ["headlines", "forward", "backward", "ladder", "roofline", "errors", "counters", "tables"];
    ensure!(order.starts_with(&expected), "{order:?}");
    let open = browser
        .evaluate("document.querySelectorAll('details[open], table:not(details table)').length")?;
    ensure!(open == 0, "{open} tables are not folded");
    Ok(())
}

/// Chooses a workload and a format, looks at what is left, and takes both back.
fn filters(browser: &mut Chromium) -> Result<()> {
    let choose = |browser: &mut Chromium, workload: &str, dtype: &str| {
        browser.evaluate(&format!(
            "(() => {{ const form = document.querySelector('#filter'); form.elements.workload.value = '{workload}'; \
             form.elements.dtype.value = '{dtype}'; form.dispatchEvent(new Event('change')); return \
             [...document.querySelectorAll('#times tbody tr')].filter(row => !row.hidden).map(row => \
             [row.cells[0].textContent, row.cells[6].textContent]); }})()"
        ))
    };
    let all = choose(browser, "", "")?.as_array().map_or(0, Vec::len);
    let left = choose(browser, "ddetr_dec", "f16")?;
    let left = left.as_array().map_or(&[][..], |rows| rows);
    let is_wanted = |row: &Value| row[0] == "ddetr_dec" && row[1] == "f16";
    ensure!(
        !left.is_empty() && left.len() < all && left.iter().all(is_wanted),
        "{left:?} of {all}"
    );
    choose(browser, "", "")?;
    Ok(())
}

/// Nothing but what scrolls by itself is wider than the screen.
fn fits_a_phone(browser: &mut Chromium) -> Result<()> {
    let screen = json!({"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": true});
    browser.ask("Emulation.setDeviceMetricsOverride", &screen)?;
    let width = browser.evaluate("document.documentElement.scrollWidth")?;
    browser.ask("Emulation.clearDeviceMetricsOverride", &json!({}))?;
    ensure!(width.as_u64() <= Some(400), "the page is {width} wide on 400");
    Ok(())
}

/// Clicks, with the mouse, the last numeric heading of every table, twice.
fn sorts(browser: &mut Chromium) -> Result<()> {
    browser.evaluate(
        "document.querySelectorAll('details').forEach(folded => { folded.open = true; })",
    )?;
    let tables = browser.evaluate("document.querySelectorAll('table').length")?;
    let tables = tables.as_u64().unwrap_or(0);
    ensure!(tables >= 3, "only {tables} tables");
    for table in 0..tables {
        let heading = format!(
            "[...document.querySelectorAll('table')[{table}].querySelectorAll('th.number')].at(-1)"
        );
        for (wanted, ordered) in [("ascending", "a <= b"), ("descending", "a >= b")] {
            let place = browser.evaluate(&format!(
                "(() => {{ const button = {heading}.querySelector('button'); button.scrollIntoView({{block: \
                 'center', inline: 'center'}}); const box = button.getBoundingClientRect(); return [box.x + \
                 box.width / 2, box.y + box.height / 2]; }})()"
            ))?;
            for kind in ["mousePressed", "mouseReleased"] {
                let click = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
                browser.ask("Input.dispatchMouseEvent", &click)?;
            }
            let found = browser.evaluate(&format!(
                "(() => {{ const heading = {heading}; const rows = \
                 [...heading.closest('table').tBodies[0].rows]; const keys = rows.map(row => \
                 row.cells[heading.cellIndex].dataset.key).filter(key => key !== undefined).map(Number); return \
                 [heading.getAttribute('aria-sort'), keys.every((b, i) => {{ const a = i ? keys[i - 1] : b; return \
                 {ordered}; }}), keys.length]; }})()"
            ))?;
            ensure!(
                found[0] == wanted && found[1] == true && found[2].as_u64() > Some(0),
                "table {table} is not {wanted}: {found}"
            );
        }
    }
    Ok(())
}

fn hovers(browser: &mut Chromium) -> Result<()> {
    let bars = "[...document.querySelectorAll('.track')]";
    let silent = format!("{bars}.filter(bar => !bar.title).length");
    let (bars, silent) = (browser.evaluate(&format!("{bars}.length"))?, browser.evaluate(&silent)?);
    ensure!(bars.as_u64() > Some(0) && silent == 0, "{silent} of {bars} bars say nothing");
    Ok(())
}

fn has_two_schemes(browser: &mut Chromium) -> Result<()> {
    let mut papers = Vec::new();
    for scheme in ["light", "dark"] {
        let (ink, paper) = colours(browser, "screen", scheme)?;
        let contrast = contrast(ink, paper);
        ensure!(contrast >= LEAST_CONTRAST, "{scheme}: the contrast of text is {contrast:.1}");
        papers.push(luminance(paper));
    }
    ensure!(papers[0] > 0.5 && papers[1] < 0.2, "light and dark look alike: {papers:?}");
    Ok(())
}

/// Printers leave backgrounds out: the ink must be dark whatever the screen's scheme.
fn prints(browser: &mut Chromium) -> Result<()> {
    let (ink, paper) = colours(browser, "print", "dark")?;
    ensure!(luminance(paper) > 0.9 && luminance(ink) < 0.2, "ink {ink:?} on paper {paper:?}");
    let cut = "[...document.querySelectorAll('.wide')].filter(box => getComputedStyle(box).overflowX !== 'visible').length";
    let cut = browser.evaluate(cut)?;
    ensure!(cut == 0, "{cut} tables scroll on paper");
    let pdf = browser.ask("Page.printToPDF", &json!({"transferMode": "ReturnAsBase64"}))?;
    let length = pdf["data"].as_str().map_or(0, str::len);
    ensure!(length > 10_000, "the printed page has {length} characters");
    browser.ask("Emulation.setEmulatedMedia", &json!({"media": ""}))?;
    Ok(())
}

fn is_quiet(browser: &mut Chromium) -> Result<()> {
    // Round trip: what was reported before the answer is in.
    browser.evaluate("0")?;
    let is_bad = |event: &&Value| match event["method"].as_str() {
        Some("Runtime.exceptionThrown") => true,
        Some("Runtime.consoleAPICalled") => event["params"]["type"] == "error",
        Some("Log.entryAdded") => event["params"]["entry"]["level"] == "error",
        Some("Network.requestWillBeSent") => {
            let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
            !url.starts_with("file:") && !url.starts_with("data:")
        }
        _ => false,
    };
    let bad: Vec<String> = browser.events.iter().filter(is_bad).map(Value::to_string).collect();
    ensure!(bad.is_empty(), "{}", bad.join("\n"));
    Ok(())
}

/// Colours of text and background, as red, green and blue.
fn colours(browser: &mut Chromium, media: &str, scheme: &str) -> Result<([f64; 3], [f64; 3])> {
    let emulated =
        json!({"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]});
    browser.ask("Emulation.setEmulatedMedia", &emulated)?;
    let style = "(() => { const style = getComputedStyle(document.body); return [style.color, \
                 style.backgroundColor].map(colour => colour.match(/[0-9.]+/g).map(Number)); })()";
    let found = browser.evaluate(style)?;
    let channels = |colour: &Value| [0, 1, 2].map(|at| colour[at].as_f64().unwrap_or(f64::NAN));
    Ok((channels(&found[0]), channels(&found[1])))
}

/// Relative luminance (WCAG).
fn luminance(colour: [f64; 3]) -> f64 {
    let linear = colour.map(|channel| {
        let part = channel / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    });
    0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
}

fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
    // Not by `max`, which passes NaN over.
    let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
    if a > b { a / b } else { b / a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contrast_is_that_of_the_guideline() {
        assert!((contrast([0.0; 3], [255.0; 3]) - 21.0).abs() < 1e-9);
        assert!((contrast([119.0; 3], [255.0; 3]) - 4.48).abs() < 0.01);
        let unknown = contrast([f64::NAN, 0.0, 0.0], [255.0; 3]);
        assert!(unknown.is_nan(), "an unknown colour passes no comparison: {unknown}");
    }
}
