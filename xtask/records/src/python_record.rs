//! The tables of the Python package, in its README and on its page of figures, from records of `benches/record.py`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use msdeform_report::cells;
use msdeform_report::models::{self, ModelSpeed, Speed};
use msdeform_report::peers::Scheme;
use msdeform_report::readme::replace_between;
use msdeform_report::table::{Cell, Table, or_dash};
use serde::Deserialize;

const SCHEMA: u32 = 1;
/// Absolute: the package index shows the README without the repository around it.
const FIGURES: &str =
    "https://github.com/msdeform/msdeform/blob/main/bindings/python/docs/figures.md";
/// What models are from, as `benches/record.py` names them in the environment.
const PACKAGES: [&str; 7] =
    ["transformers", "ultralytics", "rfdetr", "libreyolo", "mmdet", "mmcv", "mmcv-lite"];
const PASSES: [&str; 2] = ["inference", "training"];
const EAGER: &str = "eager";
const GRAPH: &str = "graph";
const NOTHING: &str = "Nothing has been measured yet.\n";

#[derive(Debug, Deserialize)]
struct PythonRecord {
    schema: u32,
    commit: String,
    environment: Environment,
    // A run that broke off leaves parts out.
    tests: Option<Tests>,
    #[serde(default)]
    host_cost: Vec<HostCost>,
    #[serde(default)]
    models: Vec<ModelRow>,
}

#[derive(Debug, Deserialize)]
struct Environment {
    /// One of these two.
    gpu: Option<String>,
    cpu: Option<String>,
    torch: String,
    /// Versions of packages, as far as they are installed, among what else is known.
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

impl Environment {
    fn device(&self) -> &str {
        self.gpu.as_deref().or(self.cpu.as_deref()).unwrap_or("a device without a name")
    }

    /// PyTorch and the packages that the models are from, with their versions.
    fn versions(&self) -> String {
        let others = PACKAGES.iter().filter_map(|name| {
            let version = self.others.get(*name)?.as_str()?;
            Some(format!(", {name} {version}"))
        });
        format!("torch {}{}", self.torch, others.collect::<String>())
    }

    fn add_packages(&mut self, mut other: Self) {
        for name in PACKAGES {
            if let Some(version) = other.others.remove(name) {
                self.others.entry(name.to_owned()).or_insert(version);
            }
        }
    }

    /// The dtype of the README's table: what people train in.
    const fn usual_dtype(&self) -> &'static str {
        if self.gpu.is_some() { "bf16" } else { "f32" }
    }
}

#[derive(Debug, Deserialize)]
struct Tests {
    passed: usize,
    failed: usize,
    skipped: usize,
    broke_off: Option<String>,
}

/// CPU time in microseconds of calls on one device, by name, among what else is known.
#[derive(Debug, Deserialize)]
struct HostCost {
    device: String,
    #[serde(flatten)]
    times_us: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Deserialize)]
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

#[derive(Debug, Deserialize)]
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

    /// Every way there is, with a column for the plain one if others have it.
    fn ways(&self, with_plain: bool) -> Vec<Option<&Side>> {
        let plain = with_plain.then_some(self.plain.as_ref());
        [Some(self.before.as_ref()), plain, Some(self.after.as_ref())]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Ways that fail where others do not, and why.
    fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let failures = [("before", &self.before_left_out), ("plain", &self.plain_left_out)];
        failures.into_iter().filter_map(|(way, reason)| Some((way, reason.as_deref()?)))
    }

    /// Over the model as it is.
    fn speedup(&self) -> Option<Speed> {
        speed(self.before.as_ref()?, self.after.as_ref()?)
    }

    /// Over the model with functions replaced alone.
    fn speedup_over_plain(&self) -> Option<Speed> {
        speed(self.plain.as_ref()?, self.after.as_ref()?)
    }
}

fn speed(before: &Side, after: &Side) -> Option<Speed> {
    Speed::of([before.median_ms, after.median_ms], [&before.samples_ms, &after.samples_ms])
}

/// The README with the figures of its records, named by their folders under `root`.
pub fn splice(readme: &str, root: &Path, records: &[String]) -> Result<String> {
    replace(
        readme,
        &match records {
            [] => NOTHING.to_owned(),
            folders => tables(&Usual::load(root, folders)?),
        },
    )
}

/// The same for the page that has every row, of all records.
pub fn splice_figures(page: &str, root: &Path, records: &[String]) -> Result<String> {
    let tables = records.iter().map(|folder| Ok(every_row(folder, &load(root, folder)?)));
    let tables = tables.collect::<Result<Vec<String>>>()?;
    replace(page, &if tables.is_empty() { NOTHING.to_owned() } else { tables.join("\n") })
}

/// The README's picture: models in the usual dtype, in the mode that the host slows down least.
pub fn picture(root: &Path, records: &[String], scheme: Scheme) -> Result<String> {
    let Usual { record, .. } = Usual::load(root, records)?;
    let (format, mode) = (record.environment.usual_dtype(), record.usual_mode());
    let shown = speeds(&record);
    let mode = if mode == GRAPH { "as CUDA graphs" } else { mode };
    let what = format!("whole models, {mode}, {format}, {}", record.environment.device());
    Ok(models::picture(&shown, &what, scheme))
}

/// Models with figures in the usual mode; some cannot be run in it.
fn speeds(record: &PythonRecord) -> Vec<ModelSpeed> {
    let (format, mode) = (record.environment.usual_dtype(), record.usual_mode());
    let speed = |name: &str| ModelSpeed {
        name: record.title(name),
        speedups: PASSES
            .map(|pass| record.find(name, mode, pass, format).and_then(ModelRow::speedup)),
    };
    let all = record.names().into_iter().map(speed);
    all.filter(|model| model.speedups.iter().any(Option::is_some)).collect()
}

/// What the README shows: models of several packages, which may have been measured one after the other on a device.
struct Usual {
    folders: Vec<String>,
    /// The first, with the models of all.
    record: PythonRecord,
}

impl Usual {
    fn load(root: &Path, folders: &[String]) -> Result<Self> {
        let each = folders.iter().map(|folder| Ok((folder.clone(), load(root, folder)?)));
        let mut each = each.collect::<Result<Vec<_>>>()?.into_iter();
        let (folder, record) = each.next().context("no record is named")?;
        Ok(each.fold(Self { folders: vec![folder], record }, Self::with))
    }

    /// Adds the models of a record of the same device that earlier records do not have, in the usual dtype, eager and as graphs.
    fn with(mut self, (folder, mut other): (String, PythonRecord)) -> Self {
        let format = self.record.environment.usual_dtype();
        let is_here = self.record.environment.device() == other.environment.device();
        let is_new = |row: &ModelRow| {
            is_here
                && row.dtype == format
                && [EAGER, GRAPH].contains(&row.mode.as_str())
                && self.record.find(&row.model, &row.mode, &row.pass, format).is_none()
        };
        other.models.retain(is_new);
        if !other.models.is_empty() {
            self.folders.push(folder);
            self.record.models.append(&mut other.models);
            self.record.environment.add_packages(other.environment);
        }
        self
    }
}

impl PythonRecord {
    /// Of models, in their order.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.models {
            if !names.contains(&row.model.as_str()) {
                names.push(&row.model);
            }
        }
        names
    }

    /// A model of transformers needs no more than its name.
    fn title(&self, model: &str) -> String {
        let row = self.models.iter().find(|row| row.model == model);
        match row.map(|row| row.package.as_str()) {
            None | Some("transformers") => model.to_owned(),
            Some(package) => format!("{model}, {package}"),
        }
    }

    /// In which a host that is slower than its GPU hides least.
    fn usual_mode(&self) -> &'static str {
        if self.models.iter().any(|row| row.mode == GRAPH) { GRAPH } else { EAGER }
    }

    fn find(&self, model: &str, mode: &str, pass: &str, format: &str) -> Option<&ModelRow> {
        self.models.iter().find(|row| {
            [&row.model, &row.mode, &row.pass, &row.dtype] == [model, mode, pass, format]
        })
    }
}

fn replace(text: &str, table: &str) -> Result<String> {
    ensure!(text.contains("<!-- records:python:begin -->"), "no marker where the tables begin");
    Ok(replace_between(text.to_owned(), "records:python", || format!("\n{table}"))?)
}

fn load(root: &Path, folder: &str) -> Result<PythonRecord> {
    let file = root.join(folder).join("python.json");
    read(&file).with_context(|| file.display().to_string())
}

fn read(file: &Path) -> Result<PythonRecord> {
    let record: PythonRecord = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    ensure!(record.schema == SCHEMA, "schema {} is not known here", record.schema);
    Ok(record)
}

fn tables(Usual { folders, record }: &Usual) -> String {
    let PythonRecord { environment, tests, .. } = record;
    let folders: Vec<String> = folders.iter().map(|folder| format!("`records/{folder}`")).collect();
    let tests = tests.as_ref().map(|Tests { passed, failed, skipped, broke_off }| {
        let end = broke_off.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        format!(" GPU tests: {passed} passed, {failed} failed, {skipped} skipped{end}.")
    });
    format!(
        "{}, {}, from {}.{}\n\n{}{}",
        environment.device(),
        environment.versions(),
        folders.join(" and "),
        tests.unwrap_or_default(),
        usual_rows(record),
        host_cost(&record.host_cost)
    )
}

/// A row of [`host_cost`]: the operator, and its times with those of PyTorch.
const HOST_COSTS: [(&str, [&str; 6]); 2] = [
    (
        "plain",
        [
            "inference_us",
            "add_us",
            "forward_with_gradients_us",
            "mul_of_3_forward_with_gradients_us",
            "forward_and_backward_us",
            "mul_of_3_forward_and_backward_us",
        ],
    ),
    (
        "fused",
        [
            "from_offsets_inference_us",
            "add_us",
            "from_offsets_forward_with_gradients_us",
            "mul_of_4_forward_with_gradients_us",
            "from_offsets_forward_and_backward_us",
            "mul_of_4_forward_and_backward_us",
        ],
    ),
];

fn host_cost(rows: &[HostCost]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let columns = "tensors on | operator | >inference | >`add` | >forward, recorded | >`mul` | >forward and backward | >`mul`";
    let rows = rows.iter().flat_map(|row| {
        HOST_COSTS.map(|(operator, names)| {
            let time_us = |name| row.times_us.get(name).and_then(serde_json::Value::as_f64);
            let time = |name| or_dash(time_us(name), |us| format!("{us:.1}"));
            let times = names.map(|name| Cell::from(time(name)));
            cells![&row.device, operator].into_iter().chain(times).collect()
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
    let dtype = record.environment.usual_dtype();
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
        let [inference, training] = PASSES.map(|pass| record.find(name, mode, pass, dtype));
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
        "Whole models with random weights before and after `msdeform.patch()`, in {dtype}: median time of a pass \
         (`training`: forward and backward), the ratio of the two medians, peak memory of training, and the error \
         of the output, patched against unpatched. The passes took turns. `within noise`: the ratios of neighbouring \
         passes show no difference. \
         An `eager` model may wait for the host; a CUDA `graph` does not. \
         [Other dtypes, `torch.compile`, functions alone, kernels]({FIGURES}).\n\n{}",
        Table::new(columns).with(rows).markdown()
    )
}

/// Everything that a record has of models.
fn every_row(folder: &str, record: &PythonRecord) -> String {
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
        let ModelRow { model, package, mode, pass, dtype, .. } = row;
        let mut cells = cells![model, package, row.input(), mode, pass, dtype];
        if row.after.is_none() {
            let reason = shown(row.left_out.as_deref().unwrap_or("nothing"));
            cells.push(format!("left out: {reason}").into());
            return cells;
        }
        let found = row.ways(has_plain);
        let each = |cell: fn(&Side) -> Option<String>| {
            let cell = move |side: &Option<&Side>| Cell::from(or_dash(side.and_then(cell), |c| c));
            found.iter().map(cell).collect::<Vec<_>>()
        };
        cells.extend(each(|side| Some(format!("{:.1} ms", side.median_ms))));
        cells.push(faster(row.speedup()).into());
        if has_plain {
            cells.push(faster(row.speedup_over_plain()).into());
        }
        cells.extend(each(|side| side.peak_mib.map(|size| format!("{size:.0} MiB"))));
        cells.extend(each(|side| side.kernels.map(|count| count.to_string())));
        cells.push(row.error().into());
        notes.extend(row.failures().map(|(way, reason)| {
            format!("- {model}, {mode}, {pass}, {dtype}, {way}: {}\n", shown(reason))
        }));
        cells
    });
    let table = Table::new(&columns).with(rows).markdown();
    if !notes.is_empty() {
        notes.insert_str(0, "\nWhat cannot be run, and why:\n\n");
    }
    let (device, versions) = (record.environment.device(), record.environment.versions());
    format!(
        "## {device}\n\n{versions}, commit {commit}, from `records/{folder}`.\n\n{table}{notes}"
    )
}

/// A reason is a message of somebody's program.
fn shown(reason: &str) -> String {
    reason.replace('|', "/").replace('<', "&lt;")
}

fn faster(speed: Option<Speed>) -> String {
    or_dash(speed, Speed::text)
}

#[cfg(test)]
mod tests;
