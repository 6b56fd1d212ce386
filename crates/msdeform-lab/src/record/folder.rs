//! Where records lie, and how they are read: `records/<device>/<date>-<revision>/record.json`.

use std::fs;
use std::path::{Path, PathBuf};

use msdeform_files::{Existing, check_seal, read_text, sealed};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Record, RecordError, SCHEMA, to_json};

pub const FILE: &str = "record.json";
/// The most that is read of one record; the largest so far has 3 MB.
const LIMIT_BYTES: u64 = 256 << 20;

fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> RecordError + use<'a> {
    move |source| RecordError::Io { action, path: path.to_owned(), source }
}

/// The checkout of this project around a folder, if there is one.
pub fn find_checkout(from: &Path) -> Option<PathBuf> {
    from.ancestors()
        .find(|folder| folder.join("crates/msdeform-lab/workloads").is_dir())
        .map(Path::to_owned)
}

/// Where records go without being told: `records/` of the checkout around the current folder, or
/// `msdeform-records` in the current folder.
pub fn default_folder() -> PathBuf {
    std::env::current_dir()
        .ok()
        .and_then(|current| find_checkout(&current))
        .map_or_else(|| PathBuf::from("msdeform-records"), |checkout| checkout.join("records"))
}

/// Every record under a folder, oldest first.
/// [`RecordError`] naming the file: a broken record is not passed over.
pub fn load_all(root: &Path) -> Result<Vec<Record>, RecordError> {
    let mut records = Vec::new();
    for device in folders(root)? {
        records.extend(read_in_folders::<Record>(&device, FILE)?);
    }
    records.sort_by(|a, b| a.date.cmp(&b.date));
    Ok(records)
}

/// One record: its folder, or the file in it.
pub fn load_one(path: &Path) -> Result<Record, RecordError> {
    read_file(&if path.is_dir() { path.join(FILE) } else { path.to_owned() })
}

/// Folders in a folder, sorted, leaving out those whose name starts with a dot.
pub fn folders(path: &Path) -> Result<Vec<PathBuf>, RecordError> {
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

/// Reads `<root>/<folder>/<name>` of every folder that has it: a device below all records, or a run below a device.
pub(crate) fn read_in_folders<T: DeserializeOwned>(
    root: &Path,
    name: &str,
) -> Result<Vec<T>, RecordError> {
    let files = folders(root)?.into_iter().map(|folder| folder.join(name));
    files.filter(|file| file.is_file()).map(|file| read_file(&file)).collect()
}

/// Writes something as a file among the records, in place of an older one, whole or not at all.
pub(crate) fn write<T: Serialize>(path: PathBuf, value: &T) -> Result<PathBuf, RecordError> {
    replace_file(&path, &to_json(value)?)?;
    Ok(path)
}

/// Writes a file with its checksum in place of an older one, whole or not at all.
pub fn replace_file(path: &Path, text: &str) -> Result<(), RecordError> {
    Ok(msdeform_files::write(path, sealed(text).as_bytes(), Existing::Replace)?)
}

/// Reads a file of this version.
pub fn read_file<T: DeserializeOwned>(path: &Path) -> Result<T, RecordError> {
    parse(&read_text(path, LIMIT_BYTES)?, path)
}

/// A record, ceilings or another file among the records, from its text; `path` is for messages.
pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, RecordError> {
    check_seal(text).map_err(|source| RecordError::Edited { path: path.to_owned(), source })?;
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
