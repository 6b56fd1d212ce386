//! What a GPU has verified, by what was compiled: one entry for everything that the dispatcher may choose for known
//! models ([`msdeform_bench::models`]).

use std::collections::BTreeMap;

use msdeform_bench::models::Specialisation;
use serde::{Deserialize, Serialize};

use super::Samples;
use super::fingerprint::hash_sources;

/// A verification of one specialisation of a kernel file.
#[derive(Clone, Debug, PartialEq)]
pub struct CompiledVerification {
    /// The variant's id.
    pub variant: String,
    /// The macros that it was compiled with, as [`Specialisation::name`] has them.
    pub defines: String,
    /// What the sources and the common options were.
    pub sources: String,
    /// The GPU.
    pub gpu: String,
    /// What the driver supports.
    pub driver: String,
    /// What compiled it.
    pub nvrtc: String,
    /// The relative L2 error; nothing if it was not a number or the kernel did not run.
    pub worst_rel_l2: Option<f64>,
    /// Whether it was within the bound.
    pub passed: bool,
}

/// All of them, by variant and macros.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompiledLedger {
    entries: BTreeMap<(String, String), CompiledVerification>,
}

/// What many entries have in common: in the file it stands once, before them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Circumstances {
    variant: String,
    sources: String,
    gpu: String,
    driver: String,
    nvrtc: String,
    passed: bool,
}

/// Entries as the file holds them: macros and error of each.
#[derive(Deserialize)]
pub(super) struct CompiledLines {
    #[serde(flatten)]
    circumstances: Circumstances,
    specialisations: BTreeMap<String, Words>,
}

/// What follows some macros: nothing but the error, or further macros. Those that several names begin with stand once,
/// around the rest of them: written out, the names would be most of all bytes in `records/`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    Error(Option<f64>),
    Further(BTreeMap<String, Words>),
}

impl Words {
    /// Every name, put together again, with its error.
    fn unfold(self, name: String, found: &mut Vec<(String, Option<f64>)>) {
        match self {
            Self::Error(error) => found.push((name, error)),
            Self::Further(words) => {
                for (further, rest) in words {
                    // A name that ends where longer ones go on.
                    let apart = if name.is_empty() || further.is_empty() { "" } else { " " };
                    rest.unfold(format!("{name}{apart}{further}"), found);
                }
            }
        }
    }
}

/// The members of the object that [`Words`] reads, of sorted names and their errors: a line for each name.
fn fold(names: &[(&str, String)], text: &mut String) -> Result<(), serde_json::Error> {
    fn word(name: &str) -> &str {
        name.split(' ').next().unwrap_or_default()
    }
    let mut rest = names;
    while let Some(&(first, ref error)) = rest.first() {
        let together = rest.iter().take_while(|(name, _)| word(name) == word(first)).count();
        let (group, others) = rest.split_at(together);
        if let [_] = group {
            *text += &format!("{}:{error}", serde_json::to_string(first)?);
        } else {
            let shared = shared_words(group);
            let remaining = group
                .iter()
                .map(|(name, error)| (name[shared.len()..].trim_start(), error.clone()));
            let group: Vec<(&str, String)> = remaining.collect();
            *text += &format!("{}:{{\n", serde_json::to_string(shared)?);
            fold(&group, text)?;
            text.push('}');
        }
        if !others.is_empty() {
            *text += ",\n";
        }
        rest = others;
    }
    Ok(())
}

/// The words that all names begin with.
fn shared_words<'a>(names: &[(&'a str, String)]) -> &'a str {
    let Some(&(first, _)) = names.first() else { return "" };
    let ends = first.match_indices(' ').map(|(at, _)| at).chain([first.len()]);
    let begins = |name: &str, end: usize| {
        name.strip_prefix(&first[..end])
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let end = ends.take_while(|&end| names.iter().all(|(name, _)| begins(name, end))).last();
    &first[..end.unwrap_or(0)]
}

impl CompiledLedger {
    pub(super) fn new(lines: Vec<CompiledLines>) -> Self {
        let mut ledger = Self::default();
        for CompiledLines { circumstances, specialisations } in lines {
            let Circumstances { variant, sources, gpu, driver, nvrtc, passed } = circumstances;
            let mut found = Vec::new();
            Words::Further(specialisations).unfold(String::new(), &mut found);
            for (defines, worst_rel_l2) in found {
                ledger.record(CompiledVerification {
                    variant: variant.clone(),
                    defines,
                    sources: sources.clone(),
                    gpu: gpu.clone(),
                    driver: driver.clone(),
                    nvrtc: nvrtc.clone(),
                    worst_rel_l2,
                    passed,
                });
            }
        }
        ledger
    }

    /// As the file holds them, a line for each.
    pub(super) fn texts(&self) -> Result<Vec<String>, serde_json::Error> {
        let mut groups: BTreeMap<Circumstances, Vec<(&str, String)>> = BTreeMap::new();
        for entry in self.entries.values() {
            let circumstances = Circumstances {
                variant: entry.variant.clone(),
                sources: entry.sources.clone(),
                gpu: entry.gpu.clone(),
                driver: entry.driver.clone(),
                nvrtc: entry.nvrtc.clone(),
                passed: entry.passed,
            };
            let error = serde_json::to_string(&entry.worst_rel_l2)?;
            groups.entry(circumstances).or_default().push((&entry.defines, error));
        }
        let text = |(circumstances, names): (Circumstances, Vec<(&str, String)>)| {
            let shared = serde_json::to_string(&circumstances)?;
            let mut text = format!("{},\"specialisations\":{{\n", shared.trim_end_matches('}'));
            fold(&names, &mut text)?;
            Ok(text + "}}")
        };
        groups.into_iter().map(text).collect()
    }

    pub(super) fn record(&mut self, verification: CompiledVerification) {
        let name = (verification.variant.clone(), verification.defines.clone());
        self.entries.insert(name, verification);
    }

    pub(super) fn keep_only(&mut self, reachable: &[Specialisation]) {
        let names: std::collections::BTreeSet<(String, String)> =
            reachable.iter().map(name).collect();
        self.entries.retain(|name, _| names.contains(name));
    }

    /// What is not verified, in words: how many of a variant for a reason, and one of them.
    pub(super) fn unverified(&self, reachable: &[Specialisation]) -> Vec<String> {
        let mut open: BTreeMap<(&str, &str), (usize, String)> = BTreeMap::new();
        for specialisation in reachable {
            let variant = specialisation.variant;
            let id = variant.spec().id;
            let sources = hash_sources(variant, Samples::of(&specialisation.problem));
            let reason = match self.entries.get(&name(specialisation)) {
                None => "never verified",
                Some(found) if found.sources != sources => "changed since they were verified",
                Some(found) if !found.passed => "failed",
                Some(_) => continue,
            };
            let first = || (0, format!("{} ({})", specialisation.problem, specialisation.name()));
            open.entry((id, reason)).or_insert_with(first).0 += 1;
        }
        let words = open.into_iter().map(|((id, reason), (count, first))| {
            format!("{id}: {count} specialisations {reason}, such as that of {first}")
        });
        words.collect()
    }
}

fn name(specialisation: &Specialisation) -> (String, String) {
    (specialisation.variant.spec().id.to_owned(), specialisation.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(defines: &str, worst_rel_l2: Option<f64>) -> CompiledVerification {
        CompiledVerification {
            variant: "fwd_general".to_owned(),
            defines: defines.to_owned(),
            sources: "abc".to_owned(),
            gpu: "GPU".to_owned(),
            driver: "13.0".to_owned(),
            nvrtc: "13.0".to_owned(),
            worst_rel_l2,
            passed: true,
        }
    }

    fn read(texts: &[String]) -> CompiledLedger {
        let lines = texts.iter().map(|text| serde_json::from_str(text).unwrap());
        CompiledLedger::new(lines.collect())
    }

    #[test]
    fn what_names_begin_with_stands_once_and_every_name_comes_back() {
        let names =
            ["A=1 B=1", "A=1 B=1 C=2 D=1", "A=1 B=1 C=2 D=12", "A=1 B=12 C=2", "A=12", "E", ""];
        let mut ledger = CompiledLedger::default();
        for (index, name) in names.iter().enumerate() {
            ledger.record(entry(name, (index != 3).then_some(index as f64 * 1e-6)));
        }
        let texts = ledger.texts().unwrap();
        assert_eq!(read(&texts), ledger);
        let folded = "\"A=1\":{\n\"B=1\":{\n\"\":0.0,\n\"C=2\":{\n\"D=1\":1e-6,\n\"D=12\":2e-6}},\n\"B=12 C=2\":null},\n\"A=12\":4e-6";
        assert!(texts[0].contains(folded), "{}", texts[0]);
    }

    #[test]
    fn names_that_are_written_out_are_read_too() {
        let text = r#"{"variant":"fwd_general","sources":"abc","gpu":"GPU","driver":"13.0","nvrtc":"13.0","passed":true,
            "specialisations":{"A=1 B=1":1e-6,"A=1 B=2":null}}"#;
        let mut ledger = CompiledLedger::default();
        ledger.record(entry("A=1 B=1", Some(1e-6)));
        ledger.record(entry("A=1 B=2", None));
        assert_eq!(read(&[text.to_owned()]), ledger);
    }

    #[test]
    fn what_is_no_error_is_refused() {
        for wrong in ["\"1e-6\"", "true", "[1e-6]"] {
            let text = format!(
                r#"{{"variant":"v","sources":"","gpu":"","driver":"","nvrtc":"","passed":true,"specialisations":{{"A=1":{{"B=1":{wrong}}}}}}}"#
            );
            assert!(serde_json::from_str::<CompiledLines>(&text).is_err(), "{wrong}");
        }
    }
}
