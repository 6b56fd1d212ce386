//! The steps of a run, their times and the count at the end.

use std::fmt;
use std::process::ExitCode;
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

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// The result of a step that ran to its end.
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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.count == Count::CHECK, self.note.is_empty()) {
            (true, true) => f.write_str("passed"),
            (true, false) => f.write_str(&self.note),
            (false, true) => self.count.fmt(f),
            (false, false) => write!(f, "{}; {}", self.count, self.note),
        }
    }
}

struct Finished {
    name: String,
    time: Duration,
    result: Result<Report>,
}

impl Finished {
    fn count(&self) -> Count {
        let failure = Count { failed: 1, ..Count::default() };
        self.result.as_ref().map_or(failure, |report| report.count)
    }
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

    /// The result of a step that ran, for the release notes.
    pub fn outcome(&self, name: &str) -> Option<String> {
        let step = self.finished.iter().find(|step| step.name == name)?;
        Some(step.result.as_ref().map_or("failed".to_owned(), Report::to_string))
    }

    /// Prints the summary, the count as its last line.
    pub fn finish(&self) -> ExitCode {
        println!("\n{}", self.summary());
        let passed = self.finished.iter().all(|step| step.count().failed == 0);
        if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn summary(&self) -> String {
        let line = |name: &str, verdict: &str, time: Duration, note: &str| {
            let line = format!("{name:<16} {verdict:<7} {:>7.1} s  {note}", time.as_secs_f64());
            line.trim_end().to_owned() + "\n"
        };
        let mut text = String::new();
        for step in &self.finished {
            let verdict = if step.count().failed == 0 { "ok" } else { "FAILED" };
            let note = match &step.result {
                Ok(report) => report.to_string(),
                Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
            };
            text += &line(&step.name, verdict, step.time, &note);
        }
        text += &line("all", "", self.finished.iter().map(|step| step.time).sum(), "");
        let total = self.finished.iter().map(Finished::count).fold(Count::default(), Count::plus);
        text + &total.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_tests_and_checks_and_a_broken_step_is_a_failure() {
        let wanted = ["format", "tests", "docs"].map(str::to_owned);
        let mut steps = Steps::only(&wanted);
        steps.run("format", || Ok(Report::check("")));
        let count = Count { passed: 20, failed: 0, skipped: 2 };
        steps.run("tests", || Ok(Report { count, note: "under qemu".into() }));
        steps.run("other", || anyhow::bail!("must not run"));
        assert!(steps.summary().ends_with("\n21 passed, 0 failed, 2 skipped"));
        assert_eq!(steps.finish(), ExitCode::SUCCESS);
        steps.run("docs", || anyhow::bail!("a broken link"));
        let summary = steps.summary();
        assert!(summary.ends_with("\n21 passed, 1 failed, 2 skipped"), "{summary}");
        assert!(summary.contains("a broken link"), "{summary}");
        assert_eq!(steps.finish(), ExitCode::FAILURE);
        let outcome = |name| steps.outcome(name).unwrap_or_default();
        assert_eq!(outcome("tests"), "20 passed, 0 failed, 2 skipped; under qemu");
        assert_eq!((outcome("format"), outcome("docs")), ("passed".into(), "failed".into()));
        assert_eq!(outcome("other"), "");
    }
}
