//! Records on disk: `records/<device>/<date>-<revision>/{record.json, summary.md}`.

use std::fs;
use std::path::{Path, PathBuf};

use msdeform_files::{Existing, FolderInTheMaking, read_text};
use serde::de::DeserializeOwned;

use super::budget::within_budget;
use super::{Record, RecordError, SCHEMA, summary, to_json};

const FILE: &str = "record.json";
const SUMMARY: &str = "summary.md";
const MOST_PER_DAY: u32 = 1000;
/// The most that is read of one record; the largest so far has 3 MB.
const LIMIT_BYTES: u64 = 256 << 20;

fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> RecordError + use<'a> {
    move |source| RecordError::Io { action, path: path.to_owned(), source }
}

/// The checkout of this project around a folder, if there is one.
#[must_use]
pub fn find_checkout(from: &Path) -> Option<PathBuf> {
    from.ancestors()
        .find(|folder| {
            folder.join("crates/msdeform-bench").is_dir() && folder.join("workloads").is_dir()
        })
        .map(Path::to_owned)
}

/// Where records go without being told: `records/` of the checkout around the current folder, or
/// `msdeform-records` in the current folder.
#[must_use]
pub fn default_folder() -> PathBuf {
    std::env::current_dir()
        .ok()
        .and_then(|current| find_checkout(&current))
        .map_or_else(|| PathBuf::from("msdeform-records"), |checkout| checkout.join("records"))
}

/// A record that grows: its folder appears with the first case and is written again after every other.
#[derive(Debug)]
pub struct RecordFolder {
    root: PathBuf,
    path: Option<PathBuf>,
}

impl RecordFolder {
    /// Below `root`, where [`write`](super::write) would put it. Nothing is there yet.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root, path: None }
    }

    /// Writes what there is of the record, each file whole or as it was.
    ///
    /// # Errors
    /// [`RecordError::Io`] naming the file or folder.
    pub fn save(&mut self, record: &Record) -> Result<(), RecordError> {
        if let Some(path) = &self.path {
            let kept = within_budget(record);
            replace_file(&path.join(FILE), &to_json(&kept)?)?;
            return replace_file(&path.join(SUMMARY), &summary(&kept));
        }
        self.path = Some(write(record, &self.root)?);
        Ok(())
    }

    /// Where it is, once something was saved.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

/// Writes a record into a folder of its own and returns that. The folder appears complete or not
/// at all, and never replaces another: further records of a commit and day get a number.
///
/// # Errors
/// [`RecordError::Io`] naming the file or folder.
pub fn write(record: &Record, root: &Path) -> Result<PathBuf, RecordError> {
    let device_folder = root.join(&record.device.slug);
    let mut pending = FolderInTheMaking::new(&device_folder)?;
    // A run that was killed left its temporaries in its own record.
    for earlier in folders(&device_folder)? {
        msdeform_files::sweep(&earlier);
    }
    let kept = within_budget(record);
    pending.add(FILE, to_json(&kept)?.as_bytes())?;
    pending.add(SUMMARY, summary(&kept).as_bytes())?;

    let date = record.date.get(..10).unwrap_or(&record.date);
    let name = format!("{date}-{}", record.provenance.revision());
    for number in 1..MOST_PER_DAY {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let target = device_folder.join(format!("{name}{suffix}"));
        pending = match pending.place(&target)? {
            None => return Ok(target),
            Some(pending) => pending,
        };
    }
    Err(RecordError::NoFreeName { path: device_folder })
}

/// Every record under a folder, oldest first.
///
/// # Errors
/// [`RecordError`] naming the file: a broken record is not passed over.
pub fn load_all(root: &Path) -> Result<Vec<Record>, RecordError> {
    load(&record_files(root)?)
}

/// One record: its folder, or the file in it.
///
/// # Errors
/// [`RecordError`] naming the file.
pub fn load_one(path: &Path) -> Result<Record, RecordError> {
    read_file(&if path.is_dir() { path.join(FILE) } else { path.to_owned() })
}

/// Folders in a folder, sorted, leaving out those whose name starts with a dot.
fn folders(path: &Path) -> Result<Vec<PathBuf>, RecordError> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(path).map_err(failed("read", path))? {
        let entry = entry.map_err(failed("read", path))?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !hidden && entry.path().is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    Ok(folders)
}

/// `<root>/<device>/<run>/record.json`.
fn record_files(root: &Path) -> Result<Vec<PathBuf>, RecordError> {
    let mut files = Vec::new();
    for device in folders(root)? {
        files.extend(device_files(&device, FILE)?);
    }
    Ok(files)
}

/// `<root>/<device>/<name>` of every device that has it.
pub(crate) fn device_files(root: &Path, name: &str) -> Result<Vec<PathBuf>, RecordError> {
    let mut files: Vec<PathBuf> = folders(root)?.iter().map(|device| device.join(name)).collect();
    files.retain(|file| file.is_file());
    Ok(files)
}

/// `<device folder>/<run>/<name>` of every run that has it; none without the folder.
pub(crate) fn run_files(device: &Path, name: &str) -> Result<Vec<PathBuf>, RecordError> {
    if !device.is_dir() {
        return Ok(Vec::new());
    }
    device_files(device, name)
}

/// Writes a file in place of an older one, whole or not at all.
pub(crate) fn replace_file(path: &Path, text: &str) -> Result<(), RecordError> {
    Ok(msdeform_files::write(path, text.as_bytes(), Existing::Replace)?)
}

/// Reads a file of this version.
pub(crate) fn read_file<T: DeserializeOwned>(path: &Path) -> Result<T, RecordError> {
    parse(&read_text(path, LIMIT_BYTES)?, path)
}

/// A record, ceilings or whatever else lies among the records, from the text of its file; `path` is for messages.
///
/// # Errors
/// [`RecordError::Parse`] and [`RecordError::Schema`].
pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, RecordError> {
    let parse = |source| RecordError::Parse { path: path.to_owned(), source };
    // The version first: another format need not parse as this one.
    let raw: serde_json::Value = serde_json::from_str(text).map_err(parse)?;
    let found = raw.get("schema").and_then(serde_json::Value::as_u64).unwrap_or(0);
    if found != u64::from(SCHEMA) {
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        return Err(RecordError::Schema { path: path.to_owned(), found });
    }
    serde_json::from_value(raw).map_err(parse)
}

fn load(files: &[PathBuf]) -> Result<Vec<Record>, RecordError> {
    let records: Result<Vec<Record>, _> = files.iter().map(|path| read_file(path)).collect();
    let mut records = records?;
    records.sort_by(|a, b| a.date.cmp(&b.date));
    Ok(records)
}
