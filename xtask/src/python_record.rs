//! The tables of the Python package, in its README and on its page of figures, from records of `benches/record.py`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use msdeform_report::models::{self, ModelSpeed, Speed};
use msdeform_report::peers::Scheme;
use serde::Deserialize;

const BEGIN: &str = "<!-- records:python:begin -->";
const END: &str = "<!-- records:python:end -->";
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

    /// The format of the README's table: what people train in.
    const fn usual_format(&self) -> &'static str {
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

/// Processor time of calls, and of products of PyTorch with as many inputs that want gradients.
#[derive(Debug, Deserialize)]
struct HostCost {
    device: String,
    add_us: f64,
    inference_us: f64,
    forward_with_gradients_us: f64,
    forward_and_backward_us: f64,
    mul_of_3_forward_with_gradients_us: f64,
    mul_of_3_forward_and_backward_us: f64,
    from_offsets_inference_us: f64,
    from_offsets_forward_with_gradients_us: f64,
    from_offsets_forward_and_backward_us: f64,
    mul_of_4_forward_with_gradients_us: f64,
    mul_of_4_forward_and_backward_us: f64,
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
        optional(self.output_error, |error| format!("{error:.0e}"))
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

fn optional<T>(found: Option<T>, text: impl FnOnce(T) -> String) -> String {
    found.map_or_else(|| "-".to_owned(), text)
}

/// Replaces what stands between the README's markers by what records say, named by their folders under `root`.
pub fn splice(readme: &str, root: &Path, records: &[String]) -> Result<String> {
    let table = match records {
        [] => NOTHING.to_owned(),
        folders => tables(&Usual::load(root, folders)?),
    };
    replace(readme, &table)
}

/// The same for the page that has every row, of all records.
pub fn splice_figures(page: &str, root: &Path, records: &[String]) -> Result<String> {
    let tables = records
        .iter()
        .map(|folder| Ok(every_row(folder, &load(root, folder)?)))
        .collect::<Result<Vec<String>>>()?;
    replace(page, &if tables.is_empty() { NOTHING.to_owned() } else { tables.join("\n") })
}

/// The README's picture: models in the usual format, as the host slows them down least.
pub fn picture(root: &Path, records: &[String], scheme: Scheme) -> Result<String> {
    let Usual { record, .. } = Usual::load(root, records)?;
    let (format, mode) = (record.environment.usual_format(), record.usual_mode());
    let shown = speeds(&record);
    let mode = if mode == GRAPH { "as CUDA graphs" } else { mode };
    let what = format!("whole models, {mode}, {format}, {}", record.environment.device());
    Ok(models::picture(&shown, &what, scheme))
}

/// Models with figures in the usual mode; some cannot be run in it.
fn speeds(record: &PythonRecord) -> Vec<ModelSpeed> {
    let (format, mode) = (record.environment.usual_format(), record.usual_mode());
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

    /// Leaves out records of other devices, of other formats and modes alone, and what an earlier one has.
    fn with(mut self, (folder, mut other): (String, PythonRecord)) -> Self {
        let format = self.record.environment.usual_format();
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
    let from = text.find(BEGIN).context("no marker where the tables begin")? + BEGIN.len();
    let to = text.find(END).context("no marker where the tables end")?;
    ensure!(from <= to && text.matches(BEGIN).count() == 1, "the markers are out of order");
    Ok(format!("{}\n{table}{}", &text[..from], &text[to..]))
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
    let mut text = format!(
        "{}, {}, from {}.",
        environment.device(),
        environment.versions(),
        folders.join(" and "),
    );
    if let Some(Tests { passed, failed, skipped, broke_off }) = tests {
        let end = broke_off.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        let _ =
            write!(text, " GPU tests: {passed} passed, {failed} failed, {skipped} skipped{end}.");
    }
    text += "\n\n";
    usual_rows(record, &mut text);
    host_cost(&record.host_cost, &mut text);
    text
}

fn host_cost(rows: &[HostCost], text: &mut String) {
    if rows.is_empty() {
        return;
    }
    *text += "\nWhat a call costs on the host, in microseconds of processor time, on a problem too small to take time \
              itself. Beside it PyTorch's own share: `torch.add`, and a chain of `torch.mul` with as many inputs. PyTorch \
              hands the backward pass of a GPU to another thread, whose time counts too.\n\n\
              | tensors on | operator | inference | `add` | forward, recorded | `mul` | forward and backward | `mul` |\n\
              |---|---|--:|--:|--:|--:|--:|--:|\n";
    for row in rows {
        let given = [
            row.inference_us,
            row.add_us,
            row.forward_with_gradients_us,
            row.mul_of_3_forward_with_gradients_us,
            row.forward_and_backward_us,
            row.mul_of_3_forward_and_backward_us,
        ];
        let from_offsets = [
            row.from_offsets_inference_us,
            row.add_us,
            row.from_offsets_forward_with_gradients_us,
            row.mul_of_4_forward_with_gradients_us,
            row.from_offsets_forward_and_backward_us,
            row.mul_of_4_forward_and_backward_us,
        ];
        for (operator, times) in [("given locations", given), ("from offsets", from_offsets)] {
            let times = times.map(|time_us| format!("{time_us:.1}")).join(" | ");
            let _ = writeln!(text, "| {} | {operator} | {times} |", row.device);
        }
    }
}

/// Lines for each model in one format: eager and, where there are, graphs.
fn usual_rows(record: &PythonRecord, text: &mut String) {
    let format = record.environment.usual_format();
    let _ = write!(
        text,
        "Whole models with random weights before and after `msdeform.patch()`, in {format}: median time of a pass \
         (`training`: forward and backward), the ratio of the two medians, peak memory of training, error \
         of the output, patched against unpatched. The passes took turns; `within noise`: the ratios of neighbouring \
         passes do not tell both apart. \
         A model that is `eager` may wait for the host; as a CUDA `graph` it does not. \
         [Other formats, `torch.compile`, functions alone, kernels]({FIGURES}).\n\n\
         | model | package | input | mode | inference | | training | | memory | error |\n\
         |---|---|---|---|--:|--:|--:|--:|--:|--:|\n"
    );
    let both = |row: Option<&ModelRow>| {
        optional(row.and_then(ModelRow::sides), |(before, after)| {
            format!("{:.1} -> {:.1} ms", before.median_ms, after.median_ms)
        })
    };
    let memory = |row: &ModelRow| {
        let (before, after) = row.sides()?;
        Some(format!("{:.0} -> {:.0} MiB", before.peak_mib?, after.peak_mib?))
    };
    for (name, mode) in record.names().into_iter().flat_map(|name| [(name, EAGER), (name, GRAPH)]) {
        let [inference, training] = PASSES.map(|pass| record.find(name, mode, pass, format));
        let Some(shown) = inference.or(training).filter(|row| row.left_out.is_none()) else {
            continue;
        };
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {mode} | {} | {} | {} | {} | {} | {} |",
            shown.package,
            shown.input(),
            both(inference),
            faster(inference.and_then(ModelRow::speedup)),
            both(training),
            faster(training.and_then(ModelRow::speedup)),
            optional(training.and_then(memory), |text| text),
            shown.error(),
        );
    }
}

/// Everything that a record says about models.
fn every_row(folder: &str, record: &PythonRecord) -> String {
    let commit = record.commit.get(..7).unwrap_or(&record.commit);
    let has_plain = record.models.iter().any(|row| row.plain.is_some());
    let (ways, ratios): (&[&str], &[&str]) = match has_plain {
        true => (&["before", "plain", "after"], &["speed-up", "by fusing"]),
        false => (&["before", "after"], &["speed-up"]),
    };
    let named = |what: &str| format!("{what} {}", ways.join(" | "));
    let labels = ["model", "package", "input", "mode", "pass", "format"];
    let figures =
        [ways.join(" | "), ratios.join(" | "), named("memory"), named("kernels"), "error".into()];
    let figures = figures.join(" | ");
    let mut text = format!(
        "## {}\n\n{}, commit {commit}, from `records/{folder}`.\n\n| {} | {figures} |\n|{}{}\n",
        record.environment.device(),
        record.environment.versions(),
        labels.join(" | "),
        "---|".repeat(labels.len()),
        "--:|".repeat(figures.matches('|').count() + 1),
    );
    let mut notes = String::new();
    for row in &record.models {
        let ModelRow { model, package, mode, pass, dtype, .. } = row;
        let _ =
            write!(text, "| {model} | {package} | {} | {mode} | {pass} | {dtype} | ", row.input());
        if row.after.is_none() {
            let reason = shown(row.left_out.as_deref().unwrap_or("nothing"));
            let empty = " |".repeat(figures.matches('|').count());
            let _ = writeln!(text, "left out: {reason} |{empty}");
            continue;
        }
        let found = row.ways(has_plain);
        let mut cells: Vec<String> = Vec::new();
        let milliseconds = |side: &Side| format!("{:.1} ms", side.median_ms);
        cells.extend(found.iter().map(|side| optional(*side, milliseconds)));
        cells.push(faster(row.speedup()));
        if has_plain {
            cells.push(faster(row.speedup_over_plain()));
        }
        cells.extend(found.iter().map(|side| mebibytes(side.and_then(|side| side.peak_mib))));
        let kernels = |side: &Option<&Side>| {
            optional(side.and_then(|side| side.kernels), |count| count.to_string())
        };
        cells.extend(found.iter().map(kernels));
        cells.push(row.error());
        let _ = writeln!(text, "{} |", cells.join(" | "));
        for (way, reason) in row.failures() {
            let _ = writeln!(notes, "- {model}, {mode}, {pass}, {dtype}, {way}: {}", shown(reason));
        }
    }
    if !notes.is_empty() {
        let _ = write!(text, "\nWhat cannot be run, and why:\n\n{notes}");
    }
    text
}

/// A reason is a message of somebody's program.
fn shown(reason: &str) -> String {
    reason.replace('|', "/").replace('<', "&lt;")
}

fn faster(speed: Option<Speed>) -> String {
    optional(speed, Speed::text)
}

fn mebibytes(size: Option<f64>) -> String {
    optional(size, |size| format!("{size:.0} MiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"schema": 1, "date": "2026-01-02T00:00:00Z", "commit": "0123456789",
        "environment": {"gpu": "G", "torch": "2.11", "transformers": "5"},
        "tests": {"passed": 70, "failed": 0, "skipped": 1},
        "host_cost": [{"device": "cuda", "add_us": 7, "inference_us": 9.87, "forward_with_gradients_us": 20,
            "forward_and_backward_us": 60, "mul_of_3_forward_with_gradients_us": 16.66,
            "mul_of_3_forward_and_backward_us": 59, "from_offsets_inference_us": 10,
            "from_offsets_forward_with_gradients_us": 21, "from_offsets_forward_and_backward_us": 61,
            "mul_of_4_forward_with_gradients_us": 22, "mul_of_4_forward_and_backward_us": 70}],
        "models": [{"model": "DETR", "package": "transformers", "mode": "eager", "images": 2, "height": 800,
            "width": 1066, "pass": "training", "dtype": "bf16", "output_error": 0.00012, "before": {"median_ms": 100, "peak_mib": 2000.4},
            "after": {"median_ms": 50, "peak_mib": 1000}}]}"#;

    #[test]
    fn the_record_stands_between_the_markers_and_nothing_else_changes() {
        let root =
            std::env::temp_dir().join(format!("msdeform-python-record-{}", std::process::id()));
        let text = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let folder = root.join("gpu/a-python");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("python.json"), RECORD).unwrap();
        let spliced = splice(&text, &root, &["gpu/a-python".to_owned()]).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert!(spliced.starts_with(&format!("before\n{BEGIN}\nG, torch 2.11")), "{spliced}");
        assert!(spliced.ends_with(&format!("\n{END}\nafter\n")), "{spliced}");
        assert!(
            spliced.contains("`records/gpu/a-python`") && !spliced.contains("old"),
            "{spliced}"
        );
        let line = "| eager | - | - | 100.0 -> 50.0 ms | 2.00x | 2000 -> 1000 MiB | 1e-4 |";
        assert!(spliced.contains(line), "{spliced}");
        let line = "| cuda | given locations | 9.9 | 7.0 | 20.0 | 16.7 | 60.0 | 59.0 |\n\
                    | cuda | from offsets | 10.0 | 7.0 | 21.0 | 22.0 | 61.0 | 70.0 |\n";
        assert!(spliced.contains(line), "{spliced}");
    }

    #[test]
    fn a_readme_without_markers_or_a_broken_record_is_an_error() {
        assert!(splice("nothing", Path::new("."), &[]).is_err());
        assert!(serde_json::from_str::<PythonRecord>("{}").is_err());
    }

    #[test]
    fn a_run_that_broke_off_shows_what_it_has() {
        let whole: serde_json::Value = serde_json::from_str(RECORD).unwrap();
        let mut part = whole.clone();
        part["models"][0]["output_error"] = serde_json::Value::Null;
        part["tests"]["broke_off"] = "not done after 80 s".into();
        let text = tables(&alone(serde_json::from_value(part).unwrap()));
        assert!(
            text.contains("1 skipped (not done after 80 s).") && text.contains("-> 1000 MiB | - |"),
            "{text}"
        );
        let mut little = whole;
        for key in ["tests", "host_cost", "models"] {
            little.as_object_mut().unwrap().remove(key);
        }
        let text = tables(&alone(serde_json::from_value(little).unwrap()));
        assert!(!text.contains("GPU tests") && !text.contains("`add`"), "{text}");
    }

    fn alone(record: PythonRecord) -> Usual {
        Usual { folders: vec!["f".into()], record }
    }

    const NEW: &str = r#"{"schema": 1, "commit": "0123456789",
        "environment": {"cpu": "P", "torch": "2.15", "transformers": "5", "rfdetr": "1.11"},
        "models": [
            {"model": "A", "package": "rfdetr", "mode": "eager", "images": 1, "height": 32, "width": 64,
             "pass": "inference", "dtype": "f32", "output_error": 1e-7,
             "before": {"median_ms": 100, "peak_mib": 20, "kernels": null},
             "after": {"median_ms": 50, "peak_mib": 10, "kernels": 7}},
            {"model": "A", "package": "rfdetr", "mode": "eager", "images": 1, "height": 32, "width": 64,
             "pass": "training", "dtype": "f32", "output_error": 1e-7,
             "before": {"median_ms": 300, "peak_mib": 200}, "after": {"median_ms": 100, "peak_mib": null}},
            {"model": "A", "package": "rfdetr", "mode": "compiled", "images": 1, "height": 32, "width": 64,
             "pass": "inference", "dtype": "f32", "left_out": "before: a | b", "is_fault": false}]}"#;

    #[test]
    fn the_readme_has_a_line_for_each_model_and_the_page_every_row() {
        let usual = alone(serde_json::from_str(NEW).unwrap());
        let readme = tables(&usual);
        let start = "P, torch 2.15, transformers 5, rfdetr 1.11, from `records/f`.";
        assert!(readme.starts_with(start), "{readme}");
        let line = "| A | rfdetr | 1 x 32 x 64 | eager | 100.0 -> 50.0 ms | 2.00x | 300.0 -> 100.0 ms | 3.00x | - | 1e-7 |\n";
        assert!(readme.contains(line) && readme.matches("| A |").count() == 1, "{readme}");
        let page = every_row("f", &usual.record);
        let line =
            "| inference | f32 | 100.0 ms | 50.0 ms | 2.00x | 20 MiB | 10 MiB | - | 7 | 1e-7 |\n";
        assert!(page.contains(line) && page.contains("left out: before: a / b |"), "{page}");
        assert_eq!(page.matches("| A |").count(), 3);
    }

    #[test]
    fn models_of_another_record_are_added_where_they_are_new_and_usual() {
        let other = |model: &str, dtype: &str| -> PythonRecord {
            let mut other: serde_json::Value = serde_json::from_str(NEW).unwrap();
            other["environment"]["ultralytics"] = "8.4".into();
            other["environment"]["mmcv-lite"] = "2.1".into();
            other["environment"]["transformers"] = "6".into();
            other["models"][0]["model"] = model.into();
            other["models"][0]["dtype"] = dtype.into();
            other["models"].as_array_mut().unwrap().truncate(1);
            serde_json::from_value(other).unwrap()
        };
        let mut elsewhere = other("C", "f32");
        elsewhere.environment.cpu = Some("Q".into());
        let usual = alone(serde_json::from_str(NEW).unwrap())
            .with(("elsewhere".into(), elsewhere))
            .with(("same".into(), other("A", "f32")))
            .with(("half".into(), other("B", "f16")))
            .with(("new".into(), other("B", "f32")));
        let readme = tables(&usual);
        assert!(
            readme.contains(
                "transformers 5, ultralytics 8.4, rfdetr 1.11, mmcv-lite 2.1, from `records/f` and `records/new`."
            ),
            "{readme}"
        );
        assert_eq!((readme.matches("| A |").count(), readme.matches("| B |").count()), (1, 1));
        assert_eq!(
            (usual.record.title("B"), usual.record.names()),
            ("B, rfdetr".into(), vec!["A", "B"])
        );
    }

    #[test]
    fn graphs_stand_beside_eager_models_and_in_the_picture() {
        let mut record: serde_json::Value = serde_json::from_str(NEW).unwrap();
        let mut graph = record["models"][0].clone();
        graph["mode"] = GRAPH.into();
        graph["before"]["median_ms"] = 80.0.into();
        let rows = record["models"].as_array_mut().unwrap();
        rows.push(graph);
        // One that cannot be captured.
        let mut eager = rows[0].clone();
        eager["model"] = "B".into();
        let mut reason = rows[2].clone();
        reason["model"] = "B".into();
        reason["mode"] = GRAPH.into();
        rows.extend([eager, reason]);
        let usual = alone(serde_json::from_value(record).unwrap());
        let readme = tables(&usual);
        assert!(
            readme.contains("| graph | 80.0 -> 50.0 ms | 1.60x | - | - | - | 1e-7 |\n"),
            "{readme}"
        );
        assert_eq!((readme.matches("| A |").count(), readme.matches("| B |").count()), (2, 1));
        assert_eq!(usual.record.usual_mode(), GRAPH);
        let shown = speeds(&usual.record);
        let speedups = [Some(Speed::Times(1.6)), None];
        assert_eq!(shown, [ModelSpeed { name: "A, rfdetr".into(), speedups }]);
    }

    #[test]
    fn a_ratio_that_neighbouring_passes_do_not_bear_out_is_noise() {
        let mut record: serde_json::Value = serde_json::from_str(NEW).unwrap();
        let row = &mut record["models"][0];
        row["before"]["samples_ms"] = serde_json::json!([100, 99, 101, 100, 100, 100]);
        row["after"]["samples_ms"] = serde_json::json!([50, 50, 120, 40, 50, 130]);
        // As older records say: what is in the table has to agree with its times.
        row["speedup"] = 1.9.into();
        let usual = alone(serde_json::from_value(record).unwrap());
        let line = "| eager | 100.0 -> 50.0 ms | within noise | 300.0 -> 100.0 ms | 3.00x |";
        assert!(tables(&usual).contains(line), "{}", tables(&usual));
        let line = "| 100.0 ms | 50.0 ms | within noise | 20 MiB |";
        assert!(every_row("f", &usual.record).contains(line));
        assert_eq!(speeds(&usual.record)[0].speedups[0], Some(Speed::Noise));
    }

    #[test]
    fn a_record_with_the_plain_operator_shows_three_ways_and_why_one_is_missing() {
        let mut record: serde_json::Value = serde_json::from_str(NEW).unwrap();
        let rows = &mut record["models"];
        rows[0]["plain"] = serde_json::json!({"median_ms": 60, "peak_mib": 15, "kernels": 9});
        // As a graph that cannot be captured without the patch.
        let second = rows[1].as_object_mut().unwrap();
        second.remove("before");
        second.insert("before_left_out".into(), "x.py:3: a < b".into());
        let page = every_row("f", &serde_json::from_value(record).unwrap());
        let head = "| format | before | plain | after | speed-up | by fusing | memory before | plain | after | \
                    kernels before | plain | after | error |\n";
        assert!(page.contains(head), "{page}");
        let line = "| f32 | 100.0 ms | 60.0 ms | 50.0 ms | 2.00x | 1.20x | 20 MiB | 15 MiB | 10 MiB | - | 9 | 7 | 1e-7 |\n";
        assert!(page.contains(line), "{page}");
        let line = "| training | f32 | - | - | 100.0 ms | - | - | - | - | - | - | - | - | 1e-7 |\n";
        assert!(page.contains(line), "{page}");
        assert!(
            page.ends_with("\n- A, eager, training, f32, before: x.py:3: a &lt; b\n"),
            "{page}"
        );
        // A table has as many cells in every line.
        let bars = |line: &str| line.matches('|').count();
        let lines: Vec<usize> =
            page.lines().filter(|line| line.starts_with('|')).map(bars).collect();
        assert_eq!(lines, [lines[0]; 5], "{page}");
    }
}
