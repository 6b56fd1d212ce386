//! The tables and the picture of the Python package, from records of `benches/record.py`.

mod models;
pub mod runs;

use std::collections::BTreeMap;
use std::path::Path;

use askama::Template;
use msdeform_lab::RecordError;
use msdeform_lab::record::read_file;
use serde::Deserialize;
use serde_json::Value;

use crate::chart::Chart;
use crate::filters;
use crate::table::{distinct, or_nothing};
use models::{ModelSpeed, Speed};

/// What models are from, as `benches/record.py` names them in the environment, after PyTorch.
const PACKAGES: [&str; 8] =
    ["torch", "transformers", "ultralytics", "rfdetr", "libreyolo", "mmdet", "mmcv", "mmcv-lite"];
const PASSES: [&str; 2] = ["inference", "training"];
const EAGER: &str = "eager";
const GRAPH: &str = "graph";

/// A record, and its blocks of text: the README's tables, and every row.
#[derive(Clone, Debug, Deserialize, Template)]
#[template(path = "python.txt", blocks = ["readme", "figures"])]
pub(crate) struct PythonRecord {
    /// Below the folder of all records; several if rows of one were added to another.
    #[serde(skip)]
    folders: Vec<String>,
    commit: String,
    /// `gpu` or `cpu`, and versions of packages, as far as they are installed.
    environment: BTreeMap<String, Value>,
    // A run that broke off leaves parts out.
    tests: Option<Tests>,
    /// CPU time in microseconds of calls on one `device`, by name.
    #[serde(default)]
    host_cost: Vec<BTreeMap<String, Value>>,
    #[serde(default)]
    models: Vec<ModelRow>,
}

#[derive(Clone, Debug, Deserialize)]
struct Tests {
    passed: usize,
    failed: usize,
    skipped: usize,
    broke_off: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct ModelRow {
    model: String,
    images: usize,
    height: usize,
    width: usize,
    pass: String,
    dtype: String,
    package: String,
    mode: String,
    /// Why there is nothing below.
    left_out: Option<String>,
    /// Nothing where it is not finite.
    output_error: Option<f64>,
    before: Option<Side>,
    /// With functions replaced alone; old records do not have it.
    plain: Option<Side>,
    after: Option<Side>,
    /// Why one of them is not there though others are.
    before_left_out: Option<String>,
    plain_left_out: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Side {
    median_ms: f64,
    /// In turns with the other ways: samples with the same index are neighbours.
    #[serde(default)]
    samples_ms: Vec<f64>,
    peak_mib: Option<f64>,
    kernels: Option<usize>,
}

impl ModelRow {
    /// A value before and after, with its decimals and its unit.
    fn both(&self, value: fn(&Side) -> Option<f64>, decimals: usize, unit: &str) -> Option<String> {
        let [before, after] = [value(self.before.as_ref()?)?, value(self.after.as_ref()?)?];
        Some(format!("{before:.decimals$} -> {after:.decimals$} {unit}"))
    }

    fn times(&self) -> Option<String> {
        self.both(|side| Some(side.median_ms), 1, "ms")
    }

    fn memory(&self) -> Option<String> {
        self.both(|side| side.peak_mib, 0, "MiB")
    }

    fn input(&self) -> String {
        format!("{} x {} x {}", self.images, self.height, self.width)
    }

    /// Over the model as it is, or over the model with functions replaced alone.
    fn speedup_over(&self, before: Option<&Side>) -> Option<Speed> {
        let (before, after) = (before?, self.after.as_ref()?);
        Speed::of([before.median_ms, after.median_ms], [&before.samples_ms, &after.samples_ms])
    }

    fn speedup(&self) -> Option<Speed> {
        self.speedup_over(self.before.as_ref())
    }
}

impl PythonRecord {
    pub(crate) fn load(root: &Path, folder: String) -> Result<Self, RecordError> {
        let record: Self = read_file(&root.join(&folder).join(runs::FILE))?;
        Ok(Self { folders: vec![folder], ..record })
    }

    /// What the README shows: models of several packages, which may have been measured one after the other on a device.
    fn usual(records: &[Self]) -> Option<Self> {
        records.iter().cloned().reduce(Self::with)
    }

    /// Adds the models of a record of the same device that this one does not have, in the usual dtype, eager and as graphs.
    fn with(mut self, mut other: Self) -> Self {
        let dtype = self.usual_dtype();
        let is_here = self.device() == other.device();
        other.models.retain(|row| {
            is_here
                && row.dtype == dtype
                && [EAGER, GRAPH].contains(&row.mode.as_str())
                && self.find(&row.model, &row.mode, &row.pass).is_none()
        });
        if !other.models.is_empty() {
            self.folders.append(&mut other.folders);
            self.models.append(&mut other.models);
            other.environment.retain(|name, _| PACKAGES.contains(&name.as_str()));
            for (name, version) in other.environment {
                self.environment.entry(name).or_insert(version);
            }
        }
        self
    }

    fn fact(&self, name: &str) -> Option<&str> {
        self.environment.get(name)?.as_str()
    }

    fn device(&self) -> &str {
        self.fact("gpu").or_else(|| self.fact("cpu")).unwrap_or("a device without a name")
    }

    /// PyTorch and the packages that the models are from, with their versions.
    fn versions(&self) -> String {
        let versions =
            PACKAGES.iter().filter_map(|name| Some(format!("{name} {}", self.fact(name)?)));
        versions.collect::<Vec<_>>().join(", ")
    }

    /// The dtype of the README's table: what people train in.
    fn usual_dtype(&self) -> &'static str {
        if self.fact("gpu").is_some() { "bf16" } else { "f32" }
    }

    /// The mode in which a host that is slower than its GPU hides least.
    fn usual_mode(&self) -> &'static str {
        if self.models.iter().any(|row| row.mode == GRAPH) { GRAPH } else { EAGER }
    }

    /// Of models, in their order.
    fn names(&self) -> Vec<&str> {
        distinct(self.models.iter().map(|row| row.model.as_str()))
    }

    /// A model of transformers needs no more than its name.
    fn title(&self, model: &str) -> String {
        let row = self.models.iter().find(|row| row.model == model);
        match row.map(|row| row.package.as_str()) {
            None | Some("transformers") => model.to_owned(),
            Some(package) => format!("{model}, {package}"),
        }
    }

    /// A row in the usual dtype.
    fn find(&self, model: &str, mode: &str, pass: &str) -> Option<&ModelRow> {
        let wanted = [model, mode, pass, self.usual_dtype()];
        self.models.iter().find(|row| {
            [&row.model, &row.mode, &row.pass, &row.dtype].map(String::as_str) == wanted
        })
    }

    /// Models with figures in the usual mode; some cannot be run in it.
    fn speeds(&self) -> Vec<ModelSpeed> {
        let of = |name: &str, pass| self.find(name, self.usual_mode(), pass)?.speedup();
        let speed = |name| (self.title(name), PASSES.map(|pass| of(name, pass)));
        let all = self.names().into_iter().map(speed);
        all.filter(|(_, speedups)| speedups.iter().any(Option::is_some)).collect()
    }

    /// Lines for each model in one dtype: eager and, where there are, graphs.
    fn usual_rows(&self) -> Vec<UsualRow<'_>> {
        let names = self.names().into_iter();
        let modes = names.flat_map(|name| [(name, EAGER), (name, GRAPH)]);
        let rows = modes.filter_map(|(name, mode)| {
            let passes = PASSES.map(|pass| self.find(name, mode, pass));
            let [inference, training] = passes;
            let shown = inference.or(training).filter(|row| row.left_out.is_none())?;
            Some((name, mode, shown, passes))
        });
        rows.collect()
    }

    /// The CPU time of calls on a device, of both operators: ours and PyTorch's own of as many inputs in turns.
    fn host_costs(&self) -> Vec<(&str, &str, [Option<f64>; 6])> {
        let rows = self.host_cost.iter().flat_map(|row| {
            [("plain", "", 3), ("fused", "from_offsets_", 4)].map(|(operator, prefix, inputs)| {
                let names = [
                    format!("{prefix}inference_us"),
                    "add_us".to_owned(),
                    format!("{prefix}forward_with_gradients_us"),
                    format!("mul_of_{inputs}_forward_with_gradients_us"),
                    format!("{prefix}forward_and_backward_us"),
                    format!("mul_of_{inputs}_forward_and_backward_us"),
                ];
                let device = row.get("device").and_then(Value::as_str).unwrap_or("-");
                (device, operator, names.map(|name| row.get(&name).and_then(Value::as_f64)))
            })
        });
        rows.collect()
    }

    /// Whether models were also measured with functions replaced alone.
    fn has_plain(&self) -> bool {
        self.models.iter().any(|row| row.plain.is_some())
    }

    /// Times, memory and kernels of a row, each of all ways.
    fn ways(&self, row: &ModelRow) -> [Vec<Option<f64>>; 3] {
        let plain = self.has_plain().then_some(row.plain.as_ref());
        let sides = [Some(row.before.as_ref()), plain, Some(row.after.as_ref())];
        let each = |value: fn(&Side) -> Option<f64>| {
            sides.into_iter().flatten().map(|side| value(side?)).collect()
        };
        [
            each(|side| Some(side.median_ms)),
            each(|side| side.peak_mib),
            each(|side| side.kernels.map(|count| count as f64)),
        ]
    }

    /// What cannot be run though something else of its row can: the row, the way and why.
    fn notes(&self) -> Vec<(&ModelRow, &str, &str)> {
        let measured = self.models.iter().filter(|row| row.after.is_some());
        let notes = measured.flat_map(|row| {
            let ways = [("before", &row.before_left_out), ("plain", &row.plain_left_out)];
            ways.map(|(way, reason)| Some((row, way, reason.as_deref()?)))
        });
        notes.flatten().collect()
    }
}

/// A model in one mode: inference and training, and one of the two that was measured.
type UsualRow<'a> = (&'a str, &'a str, &'a ModelRow, [Option<&'a ModelRow>; 2]);

/// The tables of the README.
pub(crate) fn readme_tables(records: &[PythonRecord]) -> String {
    let usual = PythonRecord::usual(records);
    or_nothing(&usual.iter().map(|record| record.as_readme().to_string()).collect::<Vec<_>>(), "")
}

/// Every row of all records.
pub(crate) fn figures(records: &[PythonRecord]) -> String {
    let records = records.iter().map(|record| record.as_figures().to_string());
    or_nothing(&records.collect::<Vec<_>>(), "\n")
}

/// The README's picture: models in the usual dtype, in the mode that the host slows down least.
pub(crate) fn picture(records: &[PythonRecord]) -> Option<Chart> {
    let record = PythonRecord::usual(records)?;
    let mode = if record.usual_mode() == GRAPH { "as CUDA graphs" } else { EAGER };
    let what = format!("whole models, {mode}, {}, {}", record.usual_dtype(), record.device());
    Some(models::picture(&record.speeds(), &what))
}

#[cfg(test)]
mod tests;
