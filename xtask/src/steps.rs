//! The steps of a run, their times and the count at the end.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Tests run by a step, or the step itself as one check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Count {
    /// A check that is not made of tests counts as one.
    pub const CHECK: Self = Self { passed: 1, failed: 0, skipped: 0 };

    /// Both together.
    pub const fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

/// What a step that ran through has to say.
#[derive(Debug, Default)]
pub struct Report {
    pub count: Count,
    /// For the summary: what was looked at.
    pub note: String,
}

impl Report {
    /// One check, passed.
    pub fn check(note: impl Into<String>) -> Self {
        Self { count: Count::CHECK, note: note.into() }
    }
}

struct Finished {
    name: String,
    time: Duration,
    result: Result<Report>,
}

/// Runs steps one after the other, all of them even if one fails, and sums up.
#[derive(Default)]
pub struct Steps {
    finished: Vec<Finished>,
    /// Names of the steps that are wanted; all if empty.
    wanted: Vec<String>,
}

impl Steps {
    /// Only steps of these names; all if there are none.
    pub fn only(names: &[String]) -> Self {
        Self { wanted: names.to_vec(), ..Self::default() }
    }

    /// Whether a step would run.
    pub fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == name)
    }

    /// Runs a step now, if it is wanted.
    pub fn run(&mut self, name: impl Into<String>, step: impl FnOnce() -> Result<Report>) {
        let name = name.into();
        if !self.wants(&name) {
            return;
        }
        println!("\n==> {name}");
        let start = Instant::now();
        let result = step();
        let time = start.elapsed();
        if let Err(error) = &result {
            println!("{name}: {error:#}");
        }
        self.finished.push(Finished { name, time, result });
    }

    /// What came out of a step that ran: how many tests, or the one check, and its note.
    pub fn outcome(&self, name: &str) -> Option<String> {
        let step = self.finished.iter().find(|step| step.name == name)?;
        let Ok(Report { count, note }) = &step.result else { return Some("failed".to_owned()) };
        let Count { passed, failed, skipped } = *count;
        let mut parts = Vec::new();
        if *count != Count::CHECK {
            let counts = [(passed, "passed"), (failed, "failed"), (skipped, "skipped")];
            let said = counts.into_iter().filter(|(count, _)| *count > 0);
            parts.extend(said.map(|(count, word)| format!("{count} {word}")));
        }
        // Some notes are the count.
        let is_new = !note.is_empty() && !parts.contains(note);
        parts.extend(is_new.then(|| note.clone()));
        Some(if parts.is_empty() { "passed".to_owned() } else { parts.join(", ") })
    }

    /// Prints the summary, the count as its last line; whether all went well.
    pub fn finish(&self) -> bool {
        println!("\n{}", self.summary());
        self.finished.iter().all(|step| step.result.as_ref().is_ok_and(|r| r.count.failed == 0))
    }

    fn summary(&self) -> String {
        let mut text = String::new();
        let mut total = Count::default();
        for Finished { name, time, result } in &self.finished {
            let (verdict, count, note) = match result {
                Ok(Report { count, note }) if count.failed == 0 => ("ok", *count, note.clone()),
                Ok(Report { count, note }) => ("FAILED", *count, note.clone()),
                Err(error) => {
                    let first = error.to_string().lines().next().unwrap_or_default().to_owned();
                    ("FAILED", Count { failed: 1, ..Count::default() }, first)
                }
            };
            total = total.plus(count);
            let line = format!("{name:<16} {verdict:<7} {:>7.1} s  {note}", time.as_secs_f64());
            text.push_str(line.trim_end());
            text.push('\n');
        }
        let time: Duration = self.finished.iter().map(|step| step.time).sum();
        let Count { passed, failed, skipped } = total;
        text + &format!(
            "{:<16} {:<7} {:>7.1} s\n{passed} passed, {failed} failed, {skipped} skipped",
            "all",
            "",
            time.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_tests_and_checks_and_a_broken_step_is_a_failure() {
        let mut steps = Steps::default();
        steps.run("format", || Ok(Report::check("")));
        let count = Count { passed: 20, failed: 0, skipped: 2 };
        steps.run("tests", || Ok(Report { count, note: "20 tests".into() }));
        assert!(steps.summary().ends_with("\n21 passed, 0 failed, 2 skipped"));
        assert!(steps.finish());
        steps.run("docs", || anyhow::bail!("a broken link"));
        let summary = steps.summary();
        assert!(summary.ends_with("\n21 passed, 1 failed, 2 skipped"), "{summary}");
        assert!(summary.contains("a broken link"), "{summary}");
        assert!(!steps.finish());
    }

    #[test]
    fn an_outcome_is_said_in_words_and_one_that_did_not_run_has_none() {
        let mut steps = Steps::default();
        let count = Count { passed: 20, failed: 0, skipped: 2 };
        steps.run("tests", || Ok(Report { count, note: "under qemu".into() }));
        steps.run("library", || Ok(Report { count, note: "20 passed".into() }));
        steps.run("linked", || Ok(Report::check("3 libraries")));
        steps.run("command", || Ok(Report::check("")));
        steps.run("docs", || anyhow::bail!("a broken link"));
        let said = |name| steps.outcome(name).unwrap_or_default();
        assert_eq!(said("tests"), "20 passed, 2 skipped, under qemu");
        assert_eq!(said("library"), "20 passed, 2 skipped");
        assert_eq!(said("linked"), "3 libraries");
        assert_eq!(said("command"), "passed");
        assert_eq!(said("docs"), "failed");
        assert_eq!(steps.outcome("other"), None);
    }

    #[test]
    fn only_what_is_wanted_runs() {
        let mut steps = Steps::only(&["docs".to_owned()]);
        steps.run("tests", || anyhow::bail!("must not run"));
        steps.run("docs", || Ok(Report::check("")));
        assert!(steps.finish());
        assert!(steps.summary().ends_with("\n1 passed, 0 failed, 0 skipped"));
    }
}
