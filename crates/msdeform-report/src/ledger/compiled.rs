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
    /// The macros that it was compiled with, as [`Specialisation::name`] has them, in any order.
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

/// What follows some macros: nothing but the error, or further macros. Those that several names have stand once, around the
/// rest of them: written out, the names would be most of all bytes in `records/`.
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

/// The object that [`Words`] reads, of names and their errors: a line for each name. First what all kernels of a step have,
/// then what names begin with.
fn fold(names: &[(&str, String)]) -> Result<String, serde_json::Error> {
    let mut steps: BTreeMap<&str, Vec<(Vec<&str>, &str)>> = BTreeMap::new();
    for (name, error) in names {
        let words: Vec<&str> = name.split(' ').collect();
        let step = words.iter().copied().find(|word| word.starts_with("STEP_"));
        steps.entry(step.unwrap_or_default()).or_default().push((words, error));
    }
    let mut members = Vec::new();
    for mut names in steps.into_values() {
        let has = |words: &[&str], word: &str| words.contains(&word);
        let shared: Vec<&str> = names[0].0.clone();
        let shared: Vec<&str> = shared
            .into_iter()
            .filter(|word| names.iter().all(|(words, _)| has(words, word)))
            .collect();
        if names.len() == 1 || shared.is_empty() {
            members.push(fold_prefixes(&names)?);
            continue;
        }
        for (words, _) in &mut names {
            words.retain(|word| !shared.contains(word));
        }
        names.sort();
        let key = serde_json::to_string(&shared.join(" "))?;
        members.push(format!("{key}:{{\n{}}}", fold_prefixes(&names)?));
    }
    Ok(format!("{{\n{}}}", members.join(",\n")))
}

/// The members of an object of sorted names: words that several begin with stand once.
fn fold_prefixes(names: &[(Vec<&str>, &str)]) -> Result<String, serde_json::Error> {
    let mut members = Vec::new();
    for group in names.chunk_by(|(a, _), (b, _)| a.first() == b.first()) {
        let (first, error) = &group[0];
        let shared = if group.len() == 1 { first.len() } else { shared_words(group) };
        let key = serde_json::to_string(&first[..shared].join(" "))?;
        if group.len() == 1 {
            members.push(format!("{key}:{error}"));
        } else {
            let rest = group.iter().map(|(words, error)| (words[shared..].to_vec(), *error));
            let rest: Vec<(Vec<&str>, &str)> = rest.collect();
            members.push(format!("{key}:{{\n{}}}", fold_prefixes(&rest)?));
        }
    }
    Ok(members.join(",\n"))
}

/// How many words all names begin with.
fn shared_words(names: &[(Vec<&str>, &str)]) -> usize {
    let (first, _) = &names[0];
    let is_shared = |at: &usize| names.iter().all(|(words, _)| words.get(*at) == first.get(*at));
    (0..first.len()).take_while(is_shared).count()
}

/// Macros have no order: the same ones are the same kernel.
fn sorted_words(name: &str) -> String {
    let mut words: Vec<&str> = name.split(' ').collect();
    words.sort_unstable();
    words.join(" ")
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
            let shared = shared.trim_end_matches('}');
            Ok(format!("{shared},\"specialisations\":{}}}", fold(&names)?))
        };
        groups.into_iter().map(text).collect()
    }

    pub(super) fn record(&mut self, mut verification: CompiledVerification) {
        verification.defines = sorted_words(&verification.defines);
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
    (specialisation.variant.spec().id.to_owned(), sorted_words(&specialisation.name()))
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
    fn what_names_have_in_common_stands_once_and_every_name_comes_back() {
        let names = [
            "B=1 A=1",
            "A=1 B=1 C=2 D=1",
            "A=1 B=1 C=2 D=12",
            "A=1 B=12 C=2",
            "A=12",
            "E",
            "",
            "STEP_SORT=1 A=1 SIDE=4 B=1",
            "STEP_SORT=1 A=2 SIDE=4",
            "STEP_SORT=1 A=2 B=1 SIDE=4",
            "STEP_ROWS=1 A=2",
        ];
        let mut ledger = CompiledLedger::default();
        for (index, name) in names.iter().enumerate() {
            ledger.record(entry(name, (index != 3).then_some(index as f64 * 1e-6)));
        }
        assert_eq!(ledger.entries.len(), names.len());
        let texts = ledger.texts().unwrap();
        assert_eq!(read(&texts), ledger);
        let lines = |text: &str| text.split_whitespace().collect::<String>();
        let text = lines(&texts[0]);
        for folded in [
            r#""A=1": {"B=1": {"": 0.0, "C=2": {"D=1": 1e-6, "D=12": 2e-6}}, "B=12 C=2": null}"#,
            r#""A=2 STEP_ROWS=1": "#,
            r#""SIDE=4 STEP_SORT=1": {"A=1 B=1": "#,
        ] {
            assert!(text.contains(&lines(folded)), "{folded}: {text}");
        }
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
