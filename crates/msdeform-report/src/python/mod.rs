//! The tables and the picture of the Python package, from records of `benches/record.py`.

mod models;
pub mod runs;

use std::collections::BTreeMap;
use std::path::Path;

use msdeform_lab::RecordError;
use msdeform_lab::record::read_file;
use serde::Deserialize;
use serde_json::Value;

use crate::chart::Chart;
use crate::table::{Cell, Table, cells, distinct, or_dash, or_nothing};
use models::{ModelSpeed, Speed};

/// Absolute: the package index shows the README without the repository around it.
const FIGURES: &str =
    "https://github.com/msdeform/msdeform/blob/main/bindings/python/docs/figures.md";
/// What models are from, as `benches/record.py` names them in the environment, after PyTorch.
const PACKAGES: [&str; 8] =
    ["torch", "transformers", "ultralytics", "rfdetr", "libreyolo", "mmdet", "mmcv", "mmcv-lite"];
const PASSES: [&str; 2] = ["inference", "training"];
const EAGER: &str = "eager";
const GRAPH: &str = "graph";

#[derive(Clone, Debug, Deserialize)]
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
    fn sides(&self) -> Option<(&Side, &Side)> {
        self.before.as_ref().zip(self.after.as_ref())
    }

    fn input(&self) -> String {
        format!("{} x {} x {}", self.images, self.height, self.width)
    }

    fn error(&self) -> String {
        or_dash(self.output_error, |error| format!("{error:.0e}"))
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
        let speed = |name: &str| ModelSpeed {
            name: self.title(name),
            speedups: PASSES.map(|pass| of(name, pass)),
        };
        let all = self.names().into_iter().map(speed);
        all.filter(|model| model.speedups.iter().any(Option::is_some)).collect()
    }
}

/// The tables of the README.
pub(crate) fn readme_tables(records: &[PythonRecord]) -> String {
    PythonRecord::usual(records).map_or_else(|| or_nothing(&[], ""), |record| tables(&record))
}

/// Every row of all records.
pub(crate) fn figures(records: &[PythonRecord]) -> String {
    or_nothing(&records.iter().map(every_row).collect::<Vec<_>>(), "\n")
}

/// The README's picture: models in the usual dtype, in the mode that the host slows down least.
pub(crate) fn picture(records: &[PythonRecord]) -> Option<Chart> {
    let record = PythonRecord::usual(records)?;
    let mode = if record.usual_mode() == GRAPH { "as CUDA graphs" } else { EAGER };
    let what = format!("whole models, {mode}, {}, {}", record.usual_dtype(), record.device());
    Some(models::picture(&record.speeds(), &what))
}

fn tables(record: &PythonRecord) -> String {
    let folders: Vec<String> =
        record.folders.iter().map(|folder| format!("`records/{folder}`")).collect();
    let tests = record.tests.as_ref().map(|Tests { passed, failed, skipped, broke_off }| {
        let end = broke_off.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        format!(" GPU tests: {passed} passed, {failed} failed, {skipped} skipped{end}.")
    });
    format!(
        "{}, {}, from {}.{}\n\n{}{}",
        record.device(),
        record.versions(),
        folders.join(" and "),
        tests.unwrap_or_default(),
        usual_rows(record),
        host_cost(&record.host_cost)
    )
}

/// An operator, its prefix in a row of [`host_cost`], and how many inputs it has.
const HOST_COSTS: [(&str, &str, usize); 2] = [("plain", "", 3), ("fused", "from_offsets_", 4)];

fn host_cost(rows: &[BTreeMap<String, Value>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let columns = "tensors on | operator | >inference | >`add` | >forward, recorded | >`mul` | >forward and backward | >`mul`";
    let rows = rows.iter().flat_map(|row| {
        HOST_COSTS.map(|(operator, prefix, inputs)| {
            let names = [
                format!("{prefix}inference_us"),
                "add_us".to_owned(),
                format!("{prefix}forward_with_gradients_us"),
                format!("mul_of_{inputs}_forward_with_gradients_us"),
                format!("{prefix}forward_and_backward_us"),
                format!("mul_of_{inputs}_forward_and_backward_us"),
            ];
            let time_us = |name: &String| row.get(name).and_then(Value::as_f64);
            let times =
                names.map(|name| Cell::from(or_dash(time_us(&name), |us| format!("{us:.1}"))));
            let device = row.get("device").and_then(Value::as_str).unwrap_or("-");
            cells![device, operator].into_iter().chain(times).collect()
        })
    });
    format!(
        "\nCPU time of a call in microseconds, on a problem so small that the GPU takes no time. The columns of PyTorch's own calls \
         show its share: `torch.add`, and a chain of `torch.mul` with as many inputs. PyTorch runs the backward pass of a GPU in \
         another thread, whose time is included.\n\n{}",
        Table::new(columns).with(rows).markdown()
    )
}

/// Lines for each model in one dtype: eager and, where there are, graphs.
fn usual_rows(record: &PythonRecord) -> String {
    let both = |row: Option<&ModelRow>| {
        or_dash(row.and_then(ModelRow::sides), |(before, after)| {
            format!("{:.1} -> {:.1} ms", before.median_ms, after.median_ms)
        })
    };
    let memory = |row: &ModelRow| {
        let (before, after) = row.sides()?;
        Some(format!("{:.0} -> {:.0} MiB", before.peak_mib?, after.peak_mib?))
    };
    let modes = record.names().into_iter().flat_map(|name| [(name, EAGER), (name, GRAPH)]);
    let rows = modes.filter_map(|(name, mode)| {
        let [inference, training] = PASSES.map(|pass| record.find(name, mode, pass));
        let shown = inference.or(training).filter(|row| row.left_out.is_none())?;
        let mut cells = cells![name, &shown.package, shown.input(), mode];
        for pass in [inference, training] {
            cells.extend(cells![both(pass), faster(pass.and_then(ModelRow::speedup))]);
        }
        cells.extend(cells![or_dash(training.and_then(memory), |text| text), shown.error()]);
        Some(cells)
    });
    let columns = "model | package | input | mode | >inference | >speed-up | >training | >speed-up | >memory | >error";
    format!(
        "Whole models with random weights before and after `msdeform.patch()`, in {}: median time of a pass \
         (`training`: forward and backward), the ratio of the two medians, peak memory of training, and the error \
         of the output, patched against unpatched. The passes took turns. `within noise`: the ratios of neighbouring \
         passes show no difference. \
         An `eager` model may wait for the host; a CUDA `graph` does not. \
         [Other dtypes, `torch.compile`, functions alone, kernels]({FIGURES}).\n\n{}",
        record.usual_dtype(),
        Table::new(columns).with(rows).markdown()
    )
}

/// Everything that a record has of models.
fn every_row(record: &PythonRecord) -> String {
    let commit = record.commit.get(..7).unwrap_or(&record.commit);
    let has_plain = record.models.iter().any(|row| row.plain.is_some());
    let (ways, ratios) = match has_plain {
        true => ("before | >plain | >after", "speed-up | >by fusing"),
        false => ("before | >after", "speed-up"),
    };
    let columns = format!(
        "model | package | input | mode | pass | dtype | >{ways} | >{ratios} | >memory {ways} | >kernels {ways} | >error"
    );
    let mut notes = String::new();
    let rows = record.models.iter().map(|row| {
        let ModelRow { model, package, mode, pass, dtype, before, plain, after, .. } = row;
        let mut cells = cells![model, package, row.input(), mode, pass, dtype];
        if after.is_none() {
            let reason = shown(row.left_out.as_deref().unwrap_or("nothing"));
            cells.push(format!("left out: {reason}").into());
            return cells;
        }
        let ways = [Some(before), has_plain.then_some(plain), Some(after)];
        let each = |cell: fn(&Side) -> Option<String>| {
            let found = ways.into_iter().flatten();
            found.map(move |side| or_dash(side.as_ref().and_then(cell), |c| c).into())
        };
        cells.extend(each(|side| Some(format!("{:.1} ms", side.median_ms))));
        cells.push(faster(row.speedup()).into());
        if has_plain {
            cells.push(faster(row.speedup_over(plain.as_ref())).into());
        }
        cells.extend(each(|side| side.peak_mib.map(|size| format!("{size:.0} MiB"))));
        cells.extend(each(|side| side.kernels.map(|count| count.to_string())));
        cells.push(row.error().into());
        for (way, reason) in [("before", &row.before_left_out), ("plain", &row.plain_left_out)] {
            let note =
                |reason| format!("- {model}, {mode}, {pass}, {dtype}, {way}: {}\n", shown(reason));
            notes.extend(reason.as_deref().map(note));
        }
        cells
    });
    let table = Table::new(&columns).with(rows).markdown();
    if !notes.is_empty() {
        notes.insert_str(0, "\nWhat cannot be run, and why:\n\n");
    }
    let (device, versions, folder) = (record.device(), record.versions(), &record.folders[0]);
    format!(
        "## {device}\n\n{versions}, commit {commit}, from `records/{folder}`.\n\n{table}{notes}"
    )
}

/// A reason is a message of another program.
fn shown(reason: &str) -> String {
    reason.replace('|', "/").replace('<', "&lt;")
}

fn faster(speed: Option<Speed>) -> String {
    or_dash(speed, Speed::text)
}

#[cfg(test)]
mod tests;
