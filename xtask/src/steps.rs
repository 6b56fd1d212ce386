//! The steps of a command: what each reported, how long it took, and the count at the end.

use std::fmt;
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::process::{self, Finished, capture, run, run_ok, sh};
use crate::tree;
use crate::uv::Environment;

/// What a step reports: its tests, or one passed check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    pub note: String,
}

impl Report {
    /// A check that is not made of tests counts as one that passed.
    pub fn check(note: impl Into<String>) -> Self {
        Self { passed: 1, note: note.into(), ..Self::default() }
    }

    /// The totals that Rust's harness prints for each binary, the summary of nextest, or the last line of pytest.
    pub fn of_tests(finished: &Finished) -> Result<Self> {
        let lines = || finished.output.lines();
        let cargo = |line: &&str| {
            line.starts_with("test result: ") || line.trim_start().starts_with("Summary [")
        };
        let pytest = |line: &&str| {
            // `3 failed, 120 passed, 71 skipped in 90.00s (0:01:30)`
            let time = line.rsplit_once(" in ").map_or("", |(_, time)| time);
            time.starts_with(|first: char| first.is_ascii_digit())
        };
        let mut report = Self::default();
        let totals = lines().filter(cargo).chain(lines().rev().find(pytest));
        totals.for_each(|line| report.add(&Self::counted(line)));
        // A binary that was killed prints no totals.
        let count = |start| lines().filter(|line| line.starts_with(start)).count();
        let killed =
            count("error: test failed, to rerun").saturating_sub(count("test result: FAILED"));
        report.failed += killed;
        ensure!(finished.success || report.failed > 0, "the tests did not run to their end");
        ensure!(report.passed + report.failed > 0, "no test ran");
        Ok(report)
    }

    fn counted(line: &str) -> Self {
        let words: Vec<&str> = line.split([' ', ',', ';', '=']).filter(|w| !w.is_empty()).collect();
        let count = |names: &[&str]| {
            let pairs = words.windows(2).filter(|pair| names.contains(&pair[1]));
            pairs.filter_map(|pair| pair[0].parse::<usize>().ok()).sum()
        };
        let (passed, skipped) = (count(&["passed"]), count(&["ignored", "skipped"]));
        Self { passed, failed: count(&["failed", "error", "errors"]), skipped, note: String::new() }
    }

    /// Counts other tests too.
    pub fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// The same counts with a note.
    pub fn noted(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    fn count(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ((self.passed, self.failed, self.skipped) == (1, 0, 0), self.note.as_str()) {
            (true, "") => f.write_str("passed"),
            (true, note) => f.write_str(note),
            (false, "") => f.write_str(&self.count()),
            (false, note) => write!(f, "{}; {note}", self.count()),
        }
    }
}

/// What a step does.
#[derive(Clone, Copy)]
pub enum Do {
    /// Commands that must succeed.
    Check(&'static [&'static str]),
    /// A command that runs tests.
    Tests(&'static str),
    /// A program of a Python environment that must succeed, on the files of the tree that match the patterns. The note is what
    /// it prints.
    Script(&'static Environment<'static>, &'static str, &'static [&'static str]),
    Call(fn() -> Result<Report>),
}

impl Do {
    pub fn run(self) -> Result<Report> {
        match self {
            Self::Check(lines) => {
                lines.iter().try_for_each(|line| run_ok(&mut sh(line)).map(|_| ()))?;
                Ok(Report::check(""))
            }
            Self::Tests(line) => tests(&mut sh(line)),
            Self::Script(environment, line, patterns) => {
                let files = if patterns.is_empty() { Vec::new() } else { tree::files(patterns)? };
                let printed = capture(environment.sh(line)?.args(&files))?;
                Ok(Report::check(match printed.trim() {
                    "" if !files.is_empty() => format!("{} files", files.len()),
                    note => note.to_owned(),
                }))
            }
            Self::Call(step) => step(),
        }
    }
}

/// Runs steps and sums up.
pub fn all(steps: &[(&str, Do)]) -> ExitCode {
    let mut run = Steps::only(&[]);
    steps.iter().for_each(|(name, step)| run.run(*name, || step.run()));
    run.finish()
}

/// A command that runs tests.
pub fn tests(command: &mut Command) -> Result<Report> {
    Report::of_tests(&run(command)?)
}

struct Step {
    name: String,
    time: Duration,
    report: Report,
    error: Option<String>,
}

impl Step {
    fn run(name: String, step: impl FnOnce() -> Result<Report>) -> Self {
        println!("\n==> {name}");
        let start = Instant::now();
        let (report, error) = match step() {
            Ok(report) => (report, None),
            Err(error) => {
                println!("{name}: {error:#}");
                (Report { failed: 1, ..Report::default() }, Some(error.to_string()))
            }
        };
        Self { name, time: start.elapsed(), report, error }
    }
}

/// Runs steps, all of them even if one fails.
pub struct Steps {
    start: Instant,
    finished: Vec<Step>,
    wanted: Vec<String>,
    known: Vec<String>,
}

impl Steps {
    /// Only steps of these names; all if there are none.
    pub fn only(names: &[String]) -> Self {
        let (finished, known) = (Vec::new(), Vec::new());
        Self { start: Instant::now(), finished, wanted: names.to_vec(), known }
    }

    /// Whether a step of this name would run.
    pub fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == name)
    }

    /// Runs a step now, if it is wanted.
    pub fn run(&mut self, name: impl Into<String>, step: impl FnOnce() -> Result<Report>) {
        let name = name.into();
        self.known.push(name.clone());
        if self.wants(&name) {
            self.finished.push(Step::run(name, step));
        }
    }

    /// Runs steps two at a time, because many of them use one core or wait for the network. They start in the order of the list;
    /// each line of output begins with the name of its step.
    pub fn together(&mut self, planned: &[&(&'static str, Do)]) {
        self.known.extend(planned.iter().map(|(name, _)| (*name).to_owned()));
        let wanted = planned.iter().filter(|(name, _)| self.wants(name)).enumerate();
        let (waiting, finished) = (Mutex::new(wanted), Mutex::new(Vec::new()));
        let lane = || {
            let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some((index, (name, step))) = next() {
                process::prefix_lines(name);
                let step = Step::run((*name).to_owned(), || step.run());
                finished.lock().unwrap_or_else(PoisonError::into_inner).push((index, step));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(lane);
            lane();
        });
        let mut finished = finished.into_inner().unwrap_or_else(PoisonError::into_inner);
        finished.sort_by_key(|(index, _)| *index);
        self.finished.extend(finished.into_iter().map(|(_, step)| step));
    }

    /// The result of a step that ran, for the release notes.
    pub fn outcome(&self, name: &str) -> Option<String> {
        let step = self.finished.iter().find(|step| step.name == name)?;
        Some(if step.error.is_some() { "failed".into() } else { step.report.to_string() })
    }

    /// Prints the summary, the count as its last line.
    pub fn finish(&mut self) -> ExitCode {
        let known = self.known.join(", ");
        for name in std::mem::take(&mut self.wanted) {
            if !self.known.contains(&name) {
                self.run(name, || anyhow::bail!("there is no such step; steps are {known}"));
            }
        }
        println!("\n{}", self.summary());
        let failed = self.finished.iter().any(|step| step.report.failed > 0);
        if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    fn summary(&self) -> String {
        let mut total = Report::default();
        let mut text = String::new();
        let mut line = |name: &str, verdict: &str, time: Duration, note: &str| {
            let line = format!("{name:<16} {verdict:<7} {:>7.1} s  {note}", time.as_secs_f64());
            text += &(line.trim_end().to_owned() + "\n");
        };
        for step in &self.finished {
            let verdict = if step.report.failed == 0 { "ok" } else { "FAILED" };
            let note = step.error.clone().unwrap_or_else(|| step.report.to_string());
            line(&step.name, verdict, step.time, note.lines().next().unwrap_or_default());
            total.add(&step.report);
        }
        line("all", "", self.start.elapsed(), "");
        text + &total.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_all_binaries_are_added_up_and_a_run_that_broke_off_is_an_error() {
        let read = |success, output: &str| {
            let report = Report::of_tests(&Finished { success, output: output.to_owned() }).ok()?;
            Some((report.passed, report.failed, report.skipped))
        };
        let cargo = "test result: ok. 10 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                     test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured\n";
        let failed = "error: test failed, to rerun pass `--test seeds`\n";
        let killed = format!("{cargo}{failed}{failed}");
        let nextest =
            "     Summary [   9.6s] 191 tests run: 190 passed (2 slow), 1 failed, 3 skipped";
        let pytest =
            "5 passed in a test's own words\n3 failed, 120 passed, 71 skipped, 1 error in 9.5s\n";
        for (success, output, expected) in [
            (false, cargo, Some((12, 1, 1))),
            (false, &killed, Some((12, 2, 1))),
            (false, nextest, Some((190, 1, 3))),
            (false, pytest, Some((120, 4, 71))),
            (true, "170 passed, 71 skipped in 191.44s (0:03:11)", Some((170, 0, 71))),
            (true, "24 passed, 1 warning in 37.06s", Some((24, 0, 0))),
            (false, "120 passed in 9.5s", None),
            (true, "Traceback", None),
            (true, "", None),
            (false, "", None),
        ] {
            assert_eq!(read(success, output), expected, "{output}");
        }
    }

    #[test]
    fn the_last_line_counts_tests_and_checks_and_a_broken_step_is_a_failure() {
        let mut steps = Steps::only(&["format", "tests", "docs"].map(str::to_owned));
        steps.run("format", || Ok(Report::check("")));
        let report = Report { passed: 20, skipped: 2, ..Report::default() };
        steps.run("tests", || Ok(report.noted("under qemu")));
        steps.run("other", || anyhow::bail!("must not run"));
        assert!(steps.summary().ends_with("\n21 passed, 0 failed, 2 skipped"));
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

    #[test]
    fn two_steps_at_a_time_are_summed_up_in_the_order_of_the_list() {
        // Ends only if both run at the same time.
        static BOTH: std::sync::Barrier = std::sync::Barrier::new(2);
        let wait = || {
            BOTH.wait();
            Ok(Report::check(""))
        };
        let planned = [
            ("first", Do::Call(wait)),
            ("unwanted", Do::Call(|| anyhow::bail!("must not run"))),
            ("second", Do::Call(wait)),
        ];
        let mut steps = Steps::only(&["first", "second"].map(str::to_owned));
        steps.together(&planned.each_ref());
        let finished: Vec<&str> = steps.finished.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(finished, ["first", "second"]);
        assert_eq!(steps.finish(), ExitCode::SUCCESS);
    }

    #[test]
    fn a_step_that_does_not_exist_is_a_failure() {
        let mut steps = Steps::only(&["formats".to_owned()]);
        steps.run("format", || Ok(Report::check("")));
        assert_eq!(steps.finish(), ExitCode::FAILURE);
    }
}
