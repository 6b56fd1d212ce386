//! The file: what is in it, where it lies, and when it is not used.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use msdeform_files::{Existing, FileError, read_text};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::CallClass;

/// Version of the format.
const SCHEMA: u32 = 1;

/// The most that is read of a tuning file: tens of thousands of entries.
const LIMIT_BYTES: u64 = 16 << 20;

/// Names a tuning file instead of the user's; `off`, or nothing, means none.
pub const TUNING_VARIABLE: &str = "MSDEFORM_TUNING";

/// What a tuning file is about: it is used only where all of this is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// What the device calls itself.
    pub device: String,
    /// Major and minor version of a GPU's instructions, such as `9.0`.
    pub compute_capability: Option<String>,
    /// Streaming multiprocessors of a GPU.
    pub multiprocessors: Option<u32>,
    /// Version of msdeform.
    pub msdeform: String,
    /// Stands for the variants that there were to choose from: a hash of their sources and knobs.
    pub fingerprint: String,
}

/// A variant with the knobs that were set; it chooses the others itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contender {
    /// Its id in the registry.
    pub variant: String,
    /// Knobs that were set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub knobs: BTreeMap<String, i64>,
    /// Median time.
    pub time_us: f64,
}

/// What was found out about one class of calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The calls that it speaks for.
    #[serde(flatten)]
    pub class: CallClass,
    /// The best.
    #[serde(flatten)]
    pub best: Contender,
    /// The choice without this file, measured too.
    pub builtin: Contender,
    /// What was measured, for people.
    pub measured_on: String,
}

/// Everything that was found out on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningFile {
    /// Version of the format.
    pub schema: u32,
    /// What it is about.
    #[serde(flatten)]
    pub origin: Origin,
    /// What was found out.
    pub entries: Vec<Entry>,
}

/// Where a tuning file may lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// None is wanted.
    Off,
    /// This one; that it is missing is worth a word.
    Named(PathBuf),
    /// The user's for this device, which need not exist.
    OfUser(PathBuf),
}

impl Source {
    /// The file that [`TUNING_VARIABLE`] names, or else the user's file for a device: `tuning/<device>.json` in the folder
    /// where the user's settings are. Not among the caches: what cleans those must not make calls slower.
    #[must_use]
    pub fn of_environment(device: &str) -> Self {
        match std::env::var_os(TUNING_VARIABLE) {
            Some(named) if named.is_empty() || named == "off" => Self::Off,
            Some(named) => Self::Named(PathBuf::from(named)),
            None => Self::of_user(device),
        }
    }

    /// The user's file for a device; the environment variable is ignored.
    #[must_use]
    pub fn of_user(device: &str) -> Self {
        match directories::ProjectDirs::from("", "", "msdeform") {
            Some(folders) => {
                let name = format!("{}.json", slug(device));
                Self::OfUser(folders.config_dir().join("tuning").join(name))
            }
            None => Self::Off,
        }
    }

    /// The file, if one is meant.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Off => None,
            Self::Named(path) | Self::OfUser(path) => Some(path),
        }
    }
}

/// A device's name as part of a file's: `NVIDIA H200` is `h200`.
#[must_use]
pub fn slug(device: &str) -> String {
    let words = device.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("nvidia"));
    let slug = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    if slug.is_empty() { "device".to_owned() } else { slug }
}

/// What a dispatcher knows beyond its own rules.
#[derive(Clone, Debug, PartialEq)]
pub enum Tuning {
    /// Nothing: no file is wanted, or it is missing.
    None {
        /// Where one would be looked for.
        path: Option<PathBuf>,
    },
    /// Nothing, although there is a file.
    Ignored {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// What was measured.
    Loaded {
        /// The file.
        path: PathBuf,
        /// Its entries.
        #[doc(hidden)]
        entries: Vec<Entry>,
    },
}

impl Tuning {
    /// Nothing is known.
    pub const OFF: Self = Self::None { path: None };

    /// Reads the file of a source for the device and kernels of an origin. Never fails: see [`Tuning::ignored`].
    #[doc(hidden)]
    #[must_use]
    pub fn load(source: &Source, here: &Origin) -> Self {
        let Some(path) = source.path() else { return Self::OFF };
        if matches!(source, Source::OfUser(_)) && !path.exists() {
            return Self::None { path: Some(path.to_owned()) };
        }
        let path = path.to_owned();
        match TuningFile::read(&path, here) {
            Ok(file) => Self::Loaded { path, entries: file.entries },
            Err(reason) => Self::Ignored { path, reason },
        }
    }

    /// The entry that speaks for a call: the nearest one.
    #[doc(hidden)]
    #[must_use]
    pub fn find(&self, class: &CallClass) -> Option<&Entry> {
        let Self::Loaded { entries, .. } = self else { return None };
        entries
            .iter()
            .filter_map(|entry| Some((entry.class.distance(class)?, entry)))
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, entry)| entry)
    }

    /// What to tell the user about a file that is not used, once.
    #[must_use]
    pub fn ignored(&self) -> Option<String> {
        let Self::Ignored { path, reason } = self else { return None };
        Some(format!(
            "the tuning file {} is ignored: {reason}; `msdeform tune` makes a new one, {TUNING_VARIABLE}=off \
             silences this",
            path.display()
        ))
    }

    /// One line for people and records.
    #[must_use]
    pub fn summary(&self) -> String {
        match self {
            Self::None { .. } => "none".to_owned(),
            Self::Ignored { reason, .. } => format!("ignored: {reason}"),
            Self::Loaded { entries, .. } => match entries.len() {
                1 => "1 choice".to_owned(),
                count => format!("{count} choices"),
            },
        }
    }

    /// The file, used or not.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::None { path } => path.as_deref(),
            Self::Ignored { path, .. } | Self::Loaded { path, .. } => Some(path),
        }
    }
}

impl TuningFile {
    /// An empty one.
    #[must_use]
    pub fn new(origin: Origin) -> Self {
        Self { schema: SCHEMA, origin, entries: Vec::new() }
    }

    /// Reads a file that was made for this device and these kernels.
    ///
    /// # Errors
    /// Why it must not be used.
    pub fn read(path: &Path, here: &Origin) -> Result<Self, String> {
        let text =
            read_text(path, LIMIT_BYTES).map_err(|error| format!("it cannot be read: {error}"))?;
        Self::parse(&text, here)
    }

    /// The same from the text of a file.
    ///
    /// # Errors
    /// Why it must not be used.
    pub fn parse(text: &str, here: &Origin) -> Result<Self, String> {
        let damaged = |error: &dyn Display| format!("it is not a tuning file: {error}");
        // The version first: another format need not parse as this one.
        let raw: Value = serde_json::from_str(text).map_err(|error| damaged(&error))?;
        let version = raw.get("schema").and_then(Value::as_u64);
        let version = version.ok_or_else(|| damaged(&"it names no schema"))?;
        if version != u64::from(SCHEMA) {
            return Err(format!(
                "its format is version {version}, this msdeform reads version {SCHEMA}"
            ));
        }
        let file: Self = serde_json::from_value(raw).map_err(|error| damaged(&error))?;
        file.origin.check(here)?;
        Ok(file)
    }

    /// Notes an entry, instead of an earlier one of the same class.
    pub fn insert(&mut self, entry: Entry) {
        self.entries.retain(|old| old.class != entry.class);
        self.entries.push(entry);
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// [`FileError`] naming the file.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| FileError::refused("write", path, error.into()))?;
        msdeform_files::write(path, (json + "\n").as_bytes(), Existing::Replace)
    }
}

impl Origin {
    /// Whether what was made there holds here; if not, why.
    fn check(&self, here: &Self) -> Result<(), String> {
        let (made_on, this) = (self.described(), here.described());
        if made_on != this {
            return Err(format!("it was made on {made_on}, this is {this}"));
        }
        if self.msdeform != here.msdeform {
            let (made_by, this) = (&self.msdeform, &here.msdeform);
            return Err(format!("it was made by msdeform {made_by}, this is {this}"));
        }
        if self.fingerprint != here.fingerprint {
            return Err("kernels have changed since it was made".to_owned());
        }
        Ok(())
    }

    /// The name of the device.
    fn described(&self) -> String {
        let mut words = self.device.clone();
        if let Some(capability) = &self.compute_capability {
            words += &format!(", compute capability {capability}");
        }
        if let Some(count) = self.multiprocessors {
            words += &format!(", {count} multiprocessors");
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use msdeform::{Direction, Mode, Problem};

    use super::*;

    fn origin() -> Origin {
        Origin {
            device: "NVIDIA H200".into(),
            compute_capability: Some("9.0".into()),
            multiprocessors: Some(132),
            msdeform: "0.1.0".into(),
            fingerprint: "abc".into(),
        }
    }

    fn entry(queries: usize, variant: &str) -> Entry {
        let problem = Problem::builder().queries(queries).levels([(8, 8)]).build().unwrap();
        let contender = |variant: &str, time_us| Contender {
            variant: variant.to_owned(),
            knobs: BTreeMap::from([("WARPS".to_owned(), 8)]),
            time_us,
        };
        Entry {
            class: CallClass::of(&problem, Direction::Forward, Mode::Fast, None),
            best: contender(variant, 4.0),
            builtin: contender("fwd_builtin", 5.0),
            measured_on: "test local".into(),
        }
    }

    fn file() -> TuningFile {
        let mut file = TuningFile::new(origin());
        file.insert(entry(100, "fwd_a"));
        file.insert(entry(140, "fwd_b"));
        file
    }

    #[test]
    fn a_file_survives_the_disk_and_the_nearest_entry_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some/tuning.json");
        file().write(&path).unwrap();
        let tuning = Tuning::load(&Source::Named(path.clone()), &origin());
        assert_eq!(tuning.ignored(), None);
        assert_eq!((tuning.path(), tuning.summary().as_str()), (Some(path.as_path()), "2 choices"));
        let found =
            |queries| tuning.find(&entry(queries, "").class).map(|e| e.best.variant.clone());
        assert_eq!(found(100).as_deref(), Some("fwd_a"));
        assert_eq!(found(130).as_deref(), Some("fwd_b"));
        assert_eq!(found(1000), None);
    }

    #[test]
    fn an_entry_replaces_the_one_of_its_class_alone() {
        let mut file = file();
        file.insert(entry(100, "fwd_c"));
        let variants: Vec<&str> = file.entries.iter().map(|e| e.best.variant.as_str()).collect();
        assert_eq!(variants, ["fwd_b", "fwd_c"]);
    }

    #[test]
    fn what_is_stale_foreign_or_broken_is_ignored_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tuning.json");
        let reason = |here: &Origin| {
            let tuning = Tuning::load(&Source::Named(path.clone()), here);
            assert_eq!(tuning.find(&entry(100, "").class), None);
            tuning.ignored().unwrap()
        };
        assert!(reason(&origin()).contains("cannot be read"));
        for (text, words) in [
            ("{", "not a tuning file"),
            ("{}", "names no schema"),
            ("{\"schema\": 9}", "version 9"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(reason(&origin()).contains(words), "{}", reason(&origin()));
        }
        file().write(&path).unwrap();
        type Change = (fn(&mut Origin), &'static str);
        let changes: [Change; 5] = [
            (|o| o.device = "NVIDIA A100".into(), "this is NVIDIA A100"),
            (|o| o.compute_capability = Some("8.0".into()), "compute capability 8.0"),
            (|o| o.multiprocessors = Some(114), "114 multiprocessors"),
            (|o| o.msdeform = "0.2.0".into(), "made by msdeform 0.1.0"),
            (|o| o.fingerprint = "def".into(), "kernels have changed"),
        ];
        for (change, words) in changes {
            let mut here = origin();
            change(&mut here);
            let reason = reason(&here);
            assert!(reason.contains(words) && reason.contains("msdeform tune"), "{reason}");
        }
    }

    #[test]
    fn a_users_file_that_does_not_exist_is_no_news_and_off_is_off() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none.json");
        let tuning = Tuning::load(&Source::OfUser(missing.clone()), &origin());
        assert_eq!((tuning.ignored(), tuning.summary().as_str()), (None, "none"));
        assert_eq!(tuning.path(), Some(missing.as_path()));
        assert_eq!(Tuning::load(&Source::Off, &origin()), Tuning::OFF);
    }

    #[test]
    fn files_are_named_after_the_device() {
        assert_eq!(slug("NVIDIA H200"), "h200");
        assert_eq!(slug("NVIDIA A100-SXM4-80GB"), "a100-sxm4-80gb");
        assert_eq!(slug("NVIDIA GeForce RTX 4090"), "geforce-rtx-4090");
        assert_eq!(slug(""), "device");
        let Source::OfUser(path) = Source::of_user("NVIDIA H200") else { return };
        assert!(path.ends_with("tuning/h200.json"), "{}", path.display());
    }
}
