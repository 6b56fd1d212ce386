//! The README's tables, made from records.

use std::fmt::Write;

use msdeform::DeviceKind;
use msdeform_bench::Ceilings;
use msdeform_bench::record::{Record, newest};

use crate::overview::{floors_markdown, markdown, most_threads, overview};

/// What is wrong with the markers in a README.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpliceError {
    /// A table that begins and does not end, or the other way round.
    #[error("the README needs `{begin}` followed by `{end}`, each once")]
    Markers {
        /// The opening marker.
        begin: String,
        /// The closing marker.
        end: String,
    },
}

/// Replaces the text between `<!-- records:cpu:begin -->` and `<!-- records:cpu:end -->` (and
/// likewise for `cuda`) by the newest figures of the given records, which come oldest first, and the
/// floors that the ceilings imply. A README without a kind's markers gets no table of it; all other text stays as it is.
///
/// # Errors
/// [`SpliceError::Markers`] if a marker is missing its partner or comes twice.
pub fn splice(
    readme: &str,
    records: &[Record],
    ceilings: &[Ceilings],
) -> Result<String, SpliceError> {
    let mut text = readme.to_owned();
    for kind in [DeviceKind::Cpu, DeviceKind::Cuda] {
        let table = || tables(kind, records, ceilings);
        text = replace_between(text, &format!("records:{kind}"), table)?;
    }
    Ok(text)
}

/// Replaces the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->`. A text without these markers stays as it is.
///
/// # Errors
/// [`SpliceError::Markers`] if a marker is missing its partner or comes twice.
pub fn replace_between(
    mut text: String,
    name: &str,
    content: impl FnOnce() -> String,
) -> Result<String, SpliceError> {
    let (begin, end) = (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"));
    let (begins, ends) = (text.matches(&begin).count(), text.matches(&end).count());
    if begins == 0 && ends == 0 {
        return Ok(text);
    }
    let place = text.find(&begin).map(|at| at + begin.len()).zip(text.find(&end));
    match place {
        Some((from, to)) if begins == 1 && ends == 1 && from <= to => {
            text.replace_range(from..to, &content());
            Ok(text)
        }
        _ => Err(SpliceError::Markers { begin, end }),
    }
}

/// `of commit 0123456`, or of how many.
fn provenance(record: &Record) -> String {
    match &record.commits()[..] {
        [commit] => format!("of commit {commit}"),
        commits => format!("of {} commits, until one full run replaces it", commits.len()),
    }
}

/// One table per device of a kind, the device measured last first.
fn tables(kind: DeviceKind, records: &[Record], ceilings: &[Ceilings]) -> String {
    let of_kind: Vec<Record> =
        records.iter().filter(|record| record.device.kind == kind.name()).cloned().collect();
    if of_kind.is_empty() {
        return "\nNothing has been measured yet.\n".to_owned();
    }
    let figures = newest(&of_kind);
    let mut seen: Vec<&str> = Vec::new();
    let mut out = String::from("\n");
    for record in of_kind.iter().rev().filter(|record| !record.measurements.is_empty()) {
        let slug = record.device.slug.as_str();
        if seen.contains(&slug) {
            continue;
        }
        seen.push(slug);
        let figures = most_threads(&figures, slug);
        let threads = figures
            .first()
            .and_then(|figure| figure.threads)
            .map_or_else(String::new, |threads| format!(", {threads} threads"));
        let rows = overview(&figures);
        let dispatched = rows.iter().flat_map(|row| row.best.values()).all(|best| best.dispatched);
        let variant = if dispatched { "variant a call gets" } else { "fastest variant" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{}{threads}; median times of the {variant}, from the release record in `records/{slug}`, {}.\n",
            record.device.name,
            provenance(record)
        );
        out.push_str(&markdown(&rows));
        out.push('\n');
        if let Some(ceilings) = ceilings.iter().find(|ceilings| ceilings.device.slug == slug) {
            out.push_str(&floors_markdown(&rows, ceilings));
        }
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use msdeform_bench::fixtures::record_of;

    use super::*;

    const README: &str = "# x\n<!-- records:cpu:begin -->\nold\n<!-- records:cpu:end -->\nrest\n";

    #[test]
    fn the_table_is_replaced_and_the_rest_stays() {
        let spliced = splice(README, &[record_of("2026-01-01T00:00:00Z", 1500.0)], &[]).unwrap();
        assert!(spliced.starts_with("# x\n<!-- records:cpu:begin -->\n"), "{spliced}");
        assert!(spliced.ends_with("\n<!-- records:cpu:end -->\nrest\n"), "{spliced}");
        assert!(!spliced.contains("old") && spliced.contains("1.50 ms"), "{spliced}");
        let records = [record_of("2026-01-01T00:00:00Z", 1500.0)];
        assert_eq!(
            splice(&spliced, &records, &[]).unwrap(),
            spliced,
            "splicing again changes nothing"
        );
    }

    #[test]
    fn the_newest_figure_wins() {
        let records =
            [record_of("2026-01-01T00:00:00Z", 1500.0), record_of("2026-01-02T00:00:00Z", 900.0)];
        let spliced = splice(README, &records, &[]).unwrap();
        assert!(spliced.contains("900 us") && !spliced.contains("1.50 ms"), "{spliced}");
    }

    #[test]
    fn no_records_and_no_markers_are_fine_and_half_a_marker_is_not() {
        assert!(splice(README, &[], &[]).unwrap().contains("Nothing has been measured yet"));
        assert_eq!(splice("plain", &[], &[]).unwrap(), "plain");
        for broken in [
            "<!-- records:cpu:begin -->",
            "<!-- records:cpu:end -->",
            "<!-- records:cpu:end --><!-- records:cpu:begin -->",
            "<!-- records:cuda:begin --><!-- records:cuda:end --><!-- records:cuda:end -->",
        ] {
            assert!(splice(broken, &[], &[]).is_err(), "{broken}");
        }
    }
}
