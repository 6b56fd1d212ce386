//! The site in a real browser: the start page, a search that finds, a kernel's page in light and dark and on a phone.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::chromium::Chromium;
use super::{LEAST_CONTRAST, contrast, luminance};

/// Pages that are looked at: the first one, tables and pictures, a table wider than any screen, code.
const PAGES: [&str; 5] =
    ["index.html", "story.html", "kernels/fwd_tile_gather.html", "ladder.html", "cli.html"];

/// Opens a page of the site and waits until it is there.
fn open(browser: &mut Chromium, site: &Path, page: &str) -> Result<()> {
    browser.events.retain(|event| event["method"] != "Page.loadEventFired");
    let url = format!("file://{}", site.join(page).display());
    browser.ask("Page.navigate", &json!({ "url": url }))?;
    browser.wait_for("Page.loadEventFired")
}

/// Waits until an expression is true: pages change themselves a moment after they are loaded.
fn wait_until(browser: &mut Chromium, expression: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while browser.evaluate(expression)? != true {
        ensure!(Instant::now() < end, "`{expression}` did not come true");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The first page has its picture, code in colours, and a navigation that leads everywhere.
pub fn starts(browser: &mut Chromium, site: &Path) -> Result<()> {
    open(browser, site, "index.html")?;
    let found = browser.evaluate(
        "({ title: document.querySelector('h1').textContent, sections: document.querySelectorAll('.sidebar-tree .caption').length, \
         links: document.querySelectorAll('.sidebar-tree a.reference').length, colours: new Set([...document.querySelectorAll('.highlight \
         span')].map(span => getComputedStyle(span).color)).size, shown: [...document.querySelectorAll('article img')].filter(image => \
         image.offsetWidth > 300 && image.naturalWidth > 300).length })",
    )?;
    ensure!(found["title"].as_str().is_some_and(|title| title.starts_with("msdeform")), "{found}");
    let least = |name: &str, number: u64| found[name].as_u64() >= Some(number);
    ensure!(least("sections", 7) && least("links", 20) && least("colours", 3), "{found}");
    ensure!(found["shown"] == 1, "one picture, of one scheme, is shown: {found}");
    Ok(())
}

/// Types a query into the field beside the pages, as a reader does, and follows a result.
pub fn searches(browser: &mut Chromium, site: &Path) -> Result<()> {
    for (query, page) in [
        ("deterministic", ""),
        ("fwd_tile_gather", "fwd_tile_gather.html"),
        ("NVRTC", "troubleshooting.html"),
    ] {
        open(browser, site, "index.html")?;
        browser.evaluate("document.querySelector('.sidebar-search').focus()")?;
        browser.ask("Input.insertText", &json!({ "text": query }))?;
        browser.events.retain(|event| event["method"] != "Page.loadEventFired");
        browser.evaluate("document.querySelector('.sidebar-search-container').requestSubmit()")?;
        browser.wait_for("Page.loadEventFired")?;
        wait_until(browser, "document.querySelectorAll('#search-results li a').length > 0")?;
        let links = "[...document.querySelectorAll('#search-results li a')].map(link => link.href)";
        wait_until(browser, &format!("{links}.some(link => link.includes('{page}'))"))?;
    }
    browser.events.retain(|event| event["method"] != "Page.loadEventFired");
    browser.evaluate("document.querySelector('#search-results li a').click()")?;
    browser.wait_for("Page.loadEventFired")?;
    let arrived = browser.evaluate("document.querySelector('article h1') !== null")?;
    ensure!(arrived == true, "a result leads to no page");
    Ok(())
}

/// Text is readable in both schemes, pictures are those of the scheme, and code too.
pub fn has_two_schemes(browser: &mut Chromium, site: &Path) -> Result<()> {
    for page in ["kernels/fwd_tile_gather.html", "story.html"] {
        let mut papers = Vec::new();
        for scheme in ["light", "dark"] {
            let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
            browser.ask("Emulation.setEmulatedMedia", &media)?;
            open(browser, site, page)?;
            let found = browser.evaluate(
                "(() => { const colour = (element, name) => getComputedStyle(element)[name].match(/[0-9.]+/g).map(Number); const code = \
                 document.querySelector('.highlight'); return { ink: colour(document.querySelector('article p'), 'color'), paper: \
                 colour(document.body, 'backgroundColor'), code: colour(code.querySelector('pre'), 'color'), behind: colour(code, \
                 'backgroundColor'), pictures: [...document.querySelectorAll('article img')].filter(image => image.offsetWidth).map(image => \
                 image.src) }; })()",
            )?;
            let colour =
                |name: &str| [0, 1, 2].map(|at| found[name][at].as_f64().unwrap_or(f64::NAN));
            for (front, back) in [("ink", "paper"), ("code", "behind")] {
                let contrast = contrast(colour(front), colour(back));
                ensure!(
                    contrast >= LEAST_CONTRAST,
                    "{page}, {scheme}: contrast {contrast:.1} of {front}"
                );
            }
            let pictures: Vec<&str> = found["pictures"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            ensure!(
                pictures.iter().all(|file| file.contains(scheme)),
                "{page}, {scheme}: {pictures:?}"
            );
            papers.push(luminance(colour("paper")));
        }
        ensure!(
            papers[0] > 0.5 && papers[1] < 0.2,
            "{page}: light and dark look alike: {papers:?}"
        );
    }
    browser.ask("Emulation.setEmulatedMedia", &json!({"media": "", "features": []}))?;
    Ok(())
}

/// Nothing but what scrolls by itself is wider than the screen, on a phone and on a desk.
pub fn fits(browser: &mut Chromium, site: &Path) -> Result<()> {
    for width in [400, 1280] {
        let screen =
            json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 1000});
        browser.ask("Emulation.setDeviceMetricsOverride", &screen)?;
        for page in PAGES {
            open(browser, site, page)?;
            let found = browser.evaluate("document.documentElement.scrollWidth")?;
            ensure!(found.as_u64() <= Some(width), "{page} is {found} wide on {width}");
        }
    }
    browser.ask("Emulation.clearDeviceMetricsOverride", &json!({}))?;
    Ok(())
}
