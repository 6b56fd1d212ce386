//! The documents that quote records: every file with tables between markers, and every picture, as the records have them.

use std::path::Path;

use anyhow::{Context, Result, bail};
use minijinja::context;
use minijinja::value::{Serde, Value};
use msdeform_lab::counters::{Counted, CounterFile};
use msdeform_lab::record::{Record, folders, newest, read_file};
use msdeform_lab::tune::{TuneRecord, gaps_markdown};
use msdeform_lab::{Ceilings, RecordError};

use crate::chart::SCHEMES;
use crate::ladder;
use crate::overview::{is_called, overview, with_floors, with_most_threads};
use crate::peers::{self, Against};
use crate::python;
use crate::release::{Manifest, load_releases};
use crate::render::render;
use crate::table::distinct;

/// The case of the README's picture: the encoder that the operator was made for, in the dtype that every peer takes.
const PICTURED: (&str, &str, &str) = ("ddetr_enc", "local", "f32");

/// Every document but the pages of kernels, and the template of its tables.
const PAGES: [(&str, &str); 6] = [
    ("README.md", "README.txt"),
    ("docs/PERFORMANCE.md", "PERFORMANCE.txt"),
    ("docs/LADDER.md", "LADDER.txt"),
    ("docs/story.md", "story.txt"),
    ("bindings/python/README.md", "python-readme.txt"),
    ("bindings/python/docs/figures.md", "figures.txt"),
];

/// Runtimes with tables of their own: the document, the name of the runtime and what readers call it.
const RUNTIMES: [(&str, &str, &str); 2] = [
    ("docs/onnx-runtime.md", "onnxruntime", "ONNX Runtime"),
    ("docs/openvino.md", "openvino", "OpenVINO"),
];

/// A file with tables, or a picture.
pub struct Document {
    /// From the root of the repository.
    pub path: String,
    /// As it is.
    pub found: String,
    /// As the records have it.
    pub made: String,
}

/// Every document of a checkout, and the number of records that they quote.
pub fn documents(root: &Path) -> Result<(Vec<Document>, usize)> {
    let (pictures, tables, records) = quoted(&root.join("records"))?;
    let mut documents = Vec::new();
    for (path, made) in pictures {
        // A picture that is not there is one that is out of date.
        let found = std::fs::read_to_string(root.join(&path)).unwrap_or_default();
        documents.push(Document { path, found, made });
    }
    for (path, tables) in tables {
        let found = std::fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        let made = with_tables(&found, &tables).with_context(|| path.clone())?;
        documents.push(Document { path, found, made });
    }
    Ok((documents, records))
}

/// A document with the text between its markers `<!-- NAME:begin -->` and `<!-- NAME:end -->` as a filled template has it.
fn with_tables(document: &str, tables: &str) -> Result<String> {
    let mut text = document.to_owned();
    for table in tables.split("<!-- ") {
        let Some((name, table)) = table.split_once(":begin -->\n") else { continue };
        let [begin, end] = ["begin", "end"].map(|side| format!("<!-- {name}:{side} -->"));
        let once = |marker: &str| (text.matches(marker).count() == 1).then(|| text.find(marker))?;
        match once(&begin).map(|at| at + begin.len()).zip(once(&end)) {
            Some((from, to)) if from <= to => text.replace_range(from..to, &format!("\n{table}")),
            _ => bail!("the document needs `{begin}` followed by `{end}`, each once"),
        }
    }
    Ok(text)
}

/// A path and a text for each.
type Texts = Vec<(String, String)>;

/// The pictures and the filled templates of all documents, and the number of records of the manifest.
fn quoted(folder: &Path) -> Result<(Texts, Texts, usize)> {
    let manifest = Manifest::load(folder)?.context("records/manifest.json is missing")?;
    let records = load_releases(folder)?;
    let gpu = records.iter().rev().find(|record| record.device.kind == "cuda");
    let gpu = gpu.context("the manifest names no record of a GPU")?;
    let slug = &gpu.device.slug;
    // The records of the Python package on the GPU come first: its README quotes them.
    let mut releases: Vec<_> = manifest.releases.iter().collect();
    releases.sort_by_key(|(name, _)| *name != slug);
    let runs = releases.iter().flat_map(|(name, release)| {
        release.python.iter().map(move |run| python::load(folder, &format!("{name}/{run}")))
    });
    let python = runs.collect::<Result<Vec<_>, _>>()?;
    let usual = python::usual(&python);
    let figures = newest(std::slice::from_ref(gpu));
    let counted = CounterFile::of_runs(&[folder.join(slug).join(&manifest.releases[slug].record)])?;
    let called: Vec<&Counted> =
        counted.iter().filter(|counted| is_called(&counted.label, &figures)).collect();
    let rungs = ladder::rows(gpu, &counted);
    let cases = peers::against(&figures, &peers::load(folder, slug)?);
    let peers = cases.iter().flat_map(|case| &case.peers);
    let with_memory = peers.clone().filter(|peer| peer.memory_mib.is_some());
    let values = context! {
        devices => times(folder, &records)?,
        rungs => Serde(&rungs),
        stops => ladder::STOPS.map(|(id, _)| id).to_vec(),
        cases => Serde(&cases),
        peers => Serde(distinct(peers.map(|peer| &peer.peer))),
        peers_with_memory => Serde(distinct(with_memory.map(|peer| &peer.peer))),
        tuned => tuned(folder)?,
        called => Serde(ladder::kernels(called).collect::<Vec<_>>()),
        python => Serde(&python),
        usual => Serde(&usual),
        packages => python::PACKAGES.to_vec(),
    };
    let pictures = pictures(&gpu.device.name, &rungs, &cases, usual.as_ref())?;
    Ok((pictures, tables(folder, &values)?, records.len()))
}

/// Paths and pictures, each for light and for dark pages.
fn pictures(
    gpu: &str,
    rungs: &[ladder::Row],
    cases: &[Against],
    python: Option<&serde_json::Value>,
) -> Result<Texts> {
    let mut pictured = cases.iter();
    let case = pictured.find(|case| (&*case.workload, &*case.locations, case.dtype) == PICTURED);
    let case = case.context("the pictured case was not timed")?;
    let [times, limits] = ladder::pictures(rungs, gpu);
    let mut charts = vec![
        ("docs/peers", peers::picture(case, gpu)),
        ("docs/story-times", times),
        ("docs/story-limits", limits),
    ];
    charts.extend(python.map(|record| ("bindings/python/docs/models", python::picture(record))));
    let drawn = SCHEMES.iter().flat_map(|scheme| {
        let path = move |path| format!("{path}-{}.svg", scheme.0);
        charts.iter().map(move |(name, chart)| Ok((path(name), chart.draw(scheme)?)))
    });
    drawn.collect()
}

/// The filled template of each document, by its path.
fn tables(folder: &Path, values: &Value) -> Result<Texts> {
    let mut texts = Vec::new();
    for (path, template) in PAGES {
        texts.push((path.to_owned(), render(template, values.clone())?));
    }
    for (path, runtime, called) in RUNTIMES {
        let records = newest_of_each_device(folder, &format!("{runtime}.json"))?;
        let values = context! { runtime, called, records };
        texts.push((path.to_owned(), render("onnx.txt", values)?));
    }
    for spec in ladder::variants() {
        let values = context! { id => spec.id, ..values.clone() };
        texts.push((format!("docs/kernels/{}.md", spec.id), render("kernel.txt", values)?));
    }
    Ok(texts)
}

/// The best times of every device, and how far they are from what it can do; the device measured last first.
fn times(folder: &Path, records: &[Record]) -> Result<Vec<Value>, RecordError> {
    let ceilings = Ceilings::load_all(folder)?;
    let measured = records.iter().rev().filter(|record| !record.measurements.is_empty());
    let devices = measured.map(|record| {
        let figures = with_most_threads(newest(std::slice::from_ref(record)));
        let ceilings = ceilings.iter().find(|found| found.device.slug == record.device.slug);
        let rows = with_floors(overview(&figures), ceilings);
        context! {
            kind => &record.device.kind,
            slug => &record.device.slug,
            name => &record.device.name,
            commits => record.commits(),
            threads => figures.first().and_then(|figure| figure.threads),
            // Whether all times are of the variants that a call gets.
            are_dispatched => rows.iter().flat_map(|row| row.best.values()).all(|best| best.dispatched),
            rows => Serde(rows),
        }
    });
    Ok(devices.collect())
}

/// What tuning gains on each GPU where it was measured.
fn tuned(folder: &Path) -> Result<Vec<Value>, RecordError> {
    let gpus = TuneRecord::load_all(folder)?.into_iter().filter(|r| r.device.kind == "cuda");
    let gains = |record: TuneRecord| {
        context! { name => &record.device.name, gains => gaps_markdown(&record).trim_end() }
    };
    Ok(gpus.map(gains).collect())
}

/// The newest file of this name below each device, with its folder below that of all records.
fn newest_of_each_device(root: &Path, file: &str) -> Result<Vec<Value>, RecordError> {
    let mut found = Vec::new();
    for device in folders(root)? {
        // Their names begin with their dates.
        let runs = folders(&device)?;
        let Some(run) = runs.iter().rfind(|run| run.join(file).is_file()) else { continue };
        let record: serde_json::Value = read_file(&run.join(file))?;
        let folder = run.strip_prefix(root).unwrap_or(run).display().to_string();
        found.push(context! { folder, ..Value::from(Serde(record)) });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_between_the_markers_is_replaced_and_the_rest_stays() {
        let mut text = "# x\n<!-- a:begin -->\nold\n<!-- a:end -->\nrest\n".to_owned();
        for table in ["b\n", "c\n"] {
            let filled = format!("<!-- a:begin -->\n{table}<!-- a:end -->\n");
            text = with_tables(&text, &filled).unwrap();
            assert_eq!(text, format!("# x\n<!-- a:begin -->\n{table}<!-- a:end -->\nrest\n"));
        }
        for broken in [
            "",
            "<!-- a:begin -->",
            "<!-- a:end -->",
            "<!-- a:end --><!-- a:begin -->",
            "<!-- a:begin --><!-- a:end --><!-- a:end -->",
        ] {
            assert!(with_tables(broken, "<!-- a:begin -->\n<!-- a:end -->").is_err(), "{broken}");
        }
    }

    #[test]
    fn the_newest_record_of_a_runtime_is_a_table() {
        let time = r#"{"p25": 1e3, "median": 2e3, "p75": 4e3}"#;
        let record = format!(
            r#"{{"schema": 1, "date": "2026-01-02T00:00:00Z", "commit": "0123456789",
            "environment": {{"cpu": "P", "openvino": "1.31.1", "load": 0.5}}, "rows": [{{"workload": "w", "images": 1,
            "dtype": "f32", "threads": 2, "rel_l2": 1e-6, "grid_sample_us": {time}, "operator_us": {time}, "speedup": {time},
            "python_speedup": {{"p25": 7, "median": 8, "p75": 9}}}}]}}"#
        );
        let root = tempfile::tempdir().unwrap();
        let text = || -> String {
            let records = newest_of_each_device(root.path(), "openvino.json").unwrap();
            let values = context! { runtime => "openvino", called => "OpenVINO", records };
            render("onnx.txt", values).unwrap()
        };
        assert!(text().contains("Nothing has been measured yet."));
        for (run, text) in [("2026-01-01-a", "broken"), ("2026-01-02-b", &record)] {
            let folder = root.path().join("p-2c").join(run);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("openvino.json"), text).unwrap();
        }
        insta::assert_snapshot!(text());
    }

    /// The texts, tables and pictures of all documents: a change of one of them is a change of a file.
    #[test]
    fn every_document_is_what_the_committed_records_say() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (documents, records) = documents(&root).unwrap();
        assert!(documents.len() > 40 && records >= 3, "{} {records}", documents.len());
        for Document { path, found, made } in documents {
            assert_eq!(found, made, "{path}: run `cargo xtask readme`");
        }
    }
}
