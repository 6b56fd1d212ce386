//! The documents that quote records: every file with tables between markers, and every picture, as the records have them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use askama::Template;
use msdeform::{DType, DeviceKind};
use msdeform_lab::counters::{Counted, CounterFile};
use msdeform_lab::record::{Figure, Record, newest};
use msdeform_lab::tune::{TuneRecord, gaps_markdown};
use msdeform_lab::{Ceilings, Floors};

use crate::chart::SCHEMES;
use crate::filters;
use crate::overview::{Row, floors_of, is_called, overview, with_most_threads};
use crate::peers::{self, Against};
use crate::python::{self, PythonRecord};
use crate::release::{Manifest, load_releases};
use crate::table::or_nothing;
use crate::{ladder, onnx};

/// The case of the README's picture: the encoder that the operator was made for, in the dtype that every peer takes.
const PICTURED: (&str, &str, DType) = ("ddetr_enc", "local", DType::F32);

/// A file with tables, or a picture.
pub struct Document {
    /// From the root of the repository.
    pub path: String,
    /// As it is.
    pub found: String,
    /// As the records have it.
    pub made: String,
}

/// The names of a document's tables, and their texts.
type Tables = Vec<(&'static str, String)>;

/// Every document of a checkout, and the number of records that they quote.
pub fn documents(root: &Path) -> Result<(Vec<Document>, usize)> {
    let quoted = Quoted::load(root.join("records"))?;
    let mut documents = Vec::new();
    for (path, made) in quoted.pictures()? {
        // A picture that is not there is one that is out of date.
        let found = std::fs::read_to_string(root.join(&path)).unwrap_or_default();
        documents.push(Document { path, found, made });
    }
    for (path, tables) in quoted.tables()? {
        let found = std::fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        let mut made = found.clone();
        for (name, table) in tables {
            replace_between(&mut made, name, &table).with_context(|| path.clone())?;
        }
        documents.push(Document { path, found, made });
    }
    Ok((documents, quoted.records.len()))
}

/// Replaces the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
fn replace_between(text: &mut String, name: &str, table: &str) -> Result<()> {
    let [begin, end] = ["begin", "end"].map(|side| format!("<!-- {name}:{side} -->"));
    let once = |marker: &str| (text.matches(marker).count() == 1).then(|| text.find(marker))?;
    match once(&begin).map(|at| at + begin.len()).zip(once(&end)) {
        Some((from, to)) if from <= to => text.replace_range(from..to, &format!("\n{table}")),
        _ => bail!("the document needs `{begin}` followed by `{end}`, each once"),
    }
    Ok(())
}

/// The records of the manifest, and what documents show of them.
struct Quoted {
    folder: PathBuf,
    records: Vec<Record>,
    /// The name of the GPU.
    gpu: String,
    /// What a call of each case takes on the GPU.
    figures: Vec<Figure>,
    counted: Vec<Counted>,
    rungs: Vec<ladder::Row>,
    cases: Vec<Against>,
    /// Records of the Python package. The GPU's come first: the package's README quotes them.
    python: Vec<PythonRecord>,
}

impl Quoted {
    fn load(folder: PathBuf) -> Result<Self> {
        let manifest = Manifest::load(&folder)?.context("records/manifest.json is missing")?;
        let records = load_releases(&folder)?;
        let gpu = records.iter().rev().find(|record| record.device.kind == "cuda");
        let gpu = gpu.context("the manifest names no record of a GPU")?;
        let slug = &gpu.device.slug;
        let mut releases: Vec<_> = manifest.releases.iter().collect();
        releases.sort_by_key(|(name, _)| *name != slug);
        let python = releases.iter().flat_map(|(name, release)| {
            let folders = release.python.iter().map(move |run| format!("{name}/{run}"));
            folders.map(|run| PythonRecord::load(&folder, run))
        });
        let python = python.collect::<Result<_, _>>()?;
        let run = folder.join(slug).join(&manifest.releases[slug].record);
        let counted = CounterFile::of_runs(&[run])?;
        let figures = newest(std::slice::from_ref(gpu));
        Ok(Self {
            gpu: gpu.device.name.clone(),
            rungs: ladder::rows(gpu, &counted),
            cases: peers::against(&figures, &peers::load(&folder, slug)?),
            python,
            figures,
            counted,
            records,
            folder,
        })
    }

    /// Paths and pictures, each for light and for dark pages.
    fn pictures(&self) -> Result<Vec<(String, String)>> {
        let Self { gpu, rungs, cases, python, .. } = self;
        let is_pictured = |case: &&Against| {
            (case.workload.as_str(), case.locations.as_str(), case.dtype) == PICTURED
        };
        let case = cases.iter().find(is_pictured).context("the pictured case was not timed")?;
        let mut charts = vec![
            ("docs/peers", peers::picture(case, gpu)),
            ("docs/story-times", ladder::times_picture(rungs, gpu)),
            ("docs/story-limits", ladder::limits_picture(rungs, gpu)),
        ];
        charts.extend(python::picture(python).map(|chart| ("bindings/python/docs/models", chart)));
        let drawn = SCHEMES.iter().flat_map(|scheme| {
            let path = move |path| format!("{path}-{}.svg", scheme.0);
            charts.iter().map(move |(name, chart)| (path(name), chart.draw(scheme)))
        });
        Ok(drawn.collect())
    }

    /// The tables of each document, by its path.
    fn tables(&self) -> Result<Vec<(String, Tables)>> {
        let Self { folder, rungs, cases, python, .. } = self;
        let peers = peers::Tables { cases };
        let is_called = |counted: &&Counted| is_called(&counted.label, &self.figures);
        let of_calls: Vec<Counted> = self.counted.iter().filter(is_called).cloned().collect();
        let performance = vec![
            ("records:cpu", self.times(DeviceKind::Cpu)?),
            ("records:cuda", self.times(DeviceKind::Cuda)?),
            ("peers", peers.as_all().to_string()),
            ("memory", peers.as_memory().to_string()),
            ("tuning", tuning_tables(folder)?),
            ("counters", Counters { counted: &of_calls }.to_string()),
        ];
        let of_runtime = |runtime| onnx::tables(folder, runtime);
        let stops = ladder::STOPS.map(|(id, _)| (id, ladder::Stop::of(rungs, id).to_string()));
        let documents: [(&str, Tables); 8] = [
            ("README.md", vec![("peers", peers.as_short().to_string())]),
            ("docs/PERFORMANCE.md", performance),
            ("docs/LADDER.md", vec![("ladder", ladder::Ladder { rows: rungs }.to_string())]),
            ("docs/onnx-runtime.md", vec![("onnxruntime", of_runtime(onnx::ONNX_RUNTIME)?)]),
            ("docs/openvino.md", vec![("openvino", of_runtime(onnx::OPENVINO)?)]),
            ("docs/story.md", stops.into()),
            ("bindings/python/README.md", vec![("records:python", python::readme_tables(python))]),
            ("bindings/python/docs/figures.md", vec![("records:python", python::figures(python))]),
        ];
        let documents = documents.map(|(path, tables)| (path.to_owned(), tables));
        let pages = ladder::variants().map(|spec| {
            let measured = ladder::Page::of(rungs, spec.id).to_string();
            (format!("docs/kernels/{}.md", spec.id), vec![("measured", measured)])
        });
        Ok(documents.into_iter().chain(pages).collect())
    }

    /// One table per device of a kind, the device measured last first.
    fn times(&self, kind: DeviceKind) -> Result<String> {
        let ceilings = Ceilings::load_all(&self.folder)?;
        let of_kind = self.records.iter().rev().filter(|record| record.device.kind == kind.name());
        let devices: Vec<String> = of_kind
            .filter(|record| !record.measurements.is_empty())
            .map(|record| Times::of(record, &ceilings).to_string())
            .collect();
        Ok(format!("{}\n", or_nothing(&devices, "").trim_end()))
    }
}

/// The best times of a device, and how far they are from what it can do.
#[derive(Template)]
#[template(path = "times.txt")]
struct Times<'a> {
    record: &'a Record,
    commits: Vec<String>,
    threads: Option<usize>,
    rows: Vec<Row>,
    ceilings: Option<&'a Ceilings>,
}

impl<'a> Times<'a> {
    fn of(record: &'a Record, ceilings: &'a [Ceilings]) -> Self {
        let figures = with_most_threads(newest(std::slice::from_ref(record)));
        Self {
            record,
            commits: record.commits(),
            threads: figures.first().and_then(|figure| figure.threads),
            rows: overview(&figures),
            ceilings: ceilings.iter().find(|found| found.device.slug == record.device.slug),
        }
    }

    /// Whether all times are of the variants that a call gets.
    fn are_dispatched(&self) -> bool {
        self.rows.iter().flat_map(|row| row.best.values()).all(|best| best.dispatched)
    }

    /// The forward rows with their best half-precision times and the floors of these, where ceilings were measured.
    fn floors(&self) -> Vec<(&Row, f64, Floors)> {
        let rows = self.rows.iter().filter_map(|row| {
            let best = row.best.get(DType::F16.name())?;
            Some((row, best.median_us, floors_of(best, self.ceilings?)?))
        });
        rows.collect()
    }
}

/// Counters of kernels.
#[derive(Template)]
#[template(path = "counters.txt")]
struct Counters<'a> {
    counted: &'a [Counted],
}

/// What tuning gains on each GPU where it was measured.
fn tuning_tables(folder: &Path) -> Result<String> {
    let gpus = TuneRecord::load_all(folder)?.into_iter().filter(|r| r.device.kind == "cuda");
    let tables: Vec<String> = gpus
        .map(|record| format!("{}. {}", record.device.name, gaps_markdown(&record).trim_end()))
        .collect();
    Ok(match tables.is_empty() {
        true => "Nothing has been tuned yet.\n".to_owned(),
        false => format!("{}\n", tables.join("\n\n")),
    })
}

#[cfg(test)]
mod tests {
    use msdeform_lab::counters::{KernelCounters, Reading};
    use msdeform_lab::fixtures::record_of;

    use super::*;

    #[test]
    fn the_text_between_the_markers_is_replaced_and_the_rest_stays() {
        let mut text = "# x\n<!-- a:begin -->\nold\n<!-- a:end -->\nrest\n".to_owned();
        for table in ["b\n", "c\n"] {
            replace_between(&mut text, "a", table).unwrap();
            assert_eq!(text, format!("# x\n<!-- a:begin -->\n{table}<!-- a:end -->\nrest\n"));
        }
        for broken in [
            "",
            "<!-- a:begin -->",
            "<!-- a:end -->",
            "<!-- a:end --><!-- a:begin -->",
            "<!-- a:begin --><!-- a:end --><!-- a:end -->",
        ] {
            assert!(replace_between(&mut broken.to_owned(), "a", "").is_err(), "{broken}");
        }
    }

    #[test]
    fn conflicts_are_a_share_and_what_was_not_read_is_a_dash() {
        let reading = |name: &str, value| Reading { name: name.to_owned(), value };
        let readings = vec![reading("l1_wavefronts", 200.0), reading("bank_conflicts", 9.0)];
        let label = record_of("2026-01-01T00:00:00Z", 1.0).measurements[0].label.clone();
        let kernel = KernelCounters { kernel: "fwd_test".to_owned(), launches: 1, readings };
        let counted = [Counted { commit: String::new(), label, kernels: vec![kernel] }];
        let table = Counters { counted: &counted }.to_string();
        let line = "| fwd_test | ddetr_enc | local | f32 | - | - | 4.50 | - |";
        assert!(table.contains(line), "{table}");
        assert!(Counters { counted: &[] }.to_string().contains("No counters"));
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
