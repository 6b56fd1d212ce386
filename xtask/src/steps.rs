//! The steps of a command: what each reported, how long it took, and the count at the end.

use std::fmt;
use std::process::{Command, ExitCode};
use std::sync::{Condvar, Mutex, PoisonError};
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

/// A step of [`Steps::together`]: its name, those of the steps that must be finished before, and what it does.
pub type Planned = (&'static str, &'static [&'static str], Do);

struct Lanes<'a> {
    waiting: Vec<&'a Planned>,
    /// The names of steps that wait or run.
    pending: Vec<&'static str>,
    finished: Vec<Step>,
}

impl<'a> Lanes<'a> {
    /// Takes the first step that can start.
    fn next(&mut self) -> Option<&'a Planned> {
        let can_start = |step: &&Planned| !step.1.iter().any(|name| self.pending.contains(name));
        let next = self.waiting.iter().position(can_start)?;
        Some(self.waiting.remove(next))
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

    /// Runs steps two at a time, because many of them use one core or wait for the network. The first step that can start
    /// does; each line of output begins with the name of its step.
    pub fn together(&mut self, planned: &[&Planned]) {
        self.known.extend(planned.iter().map(|(name, ..)| (*name).to_owned()));
        let waiting = planned.iter().copied().filter(|(name, ..)| self.wants(name));
        let waiting: Vec<&Planned> = waiting.collect();
        let has_prefix = waiting.len() > 1;
        let pending = waiting.iter().map(|(name, ..)| *name).collect();
        let lanes = Mutex::new(Lanes { waiting, pending, finished: Vec::new() });
        let freed = Condvar::new();
        let lane = || {
            let mut lanes_now = lanes.lock().unwrap_or_else(PoisonError::into_inner);
            while !lanes_now.waiting.is_empty() {
                let Some((name, _, step)) = lanes_now.next() else {
                    lanes_now = freed.wait(lanes_now).unwrap_or_else(PoisonError::into_inner);
                    continue;
                };
                drop(lanes_now);
                process::prefix_lines(if has_prefix { name } else { "" });
                let finished = Step::run((*name).to_owned(), || step.run());
                lanes_now = lanes.lock().unwrap_or_else(PoisonError::into_inner);
                lanes_now.pending.retain(|pending| pending != name);
                lanes_now.finished.push(finished);
                freed.notify_all();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(lane);
            lane();
        });
        let mut finished = lanes.into_inner().unwrap_or_else(PoisonError::into_inner).finished;
        finished.sort_by_key(|step| planned.iter().position(|(name, ..)| *name == step.name));
        self.finished.extend(finished);
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

    fn read(success: bool, output: &str) -> Result<(usize, usize, usize)> {
        let report = Report::of_tests(&Finished { success, output: output.to_owned() })?;
        Ok((report.passed, report.failed, report.skipped))
    }

    #[test]
    fn totals_of_all_binaries_are_added_up_and_a_run_that_broke_off_is_an_error() {
        let output = "test result: ok. 10 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                      test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured\n";
        assert_eq!(read(false, output).unwrap(), (12, 1, 1));
        let failed = "error: test failed, to rerun pass `--test seeds`\n";
        assert_eq!(read(false, &format!("{output}{failed}{failed}")).unwrap(), (12, 2, 1));
        let nextest =
            "     Summary [   9.6s] 191 tests run: 190 passed (2 slow), 1 failed, 3 skipped";
        assert_eq!(read(false, nextest).unwrap(), (190, 1, 3));
        assert!(read(false, "").is_err() && read(true, "").is_err());
    }

    #[test]
    fn the_last_line_of_pytest_counts_failures_errors_and_skips() {
        let output =
            "5 passed in a test's own words\n3 failed, 120 passed, 71 skipped, 1 error in 9.5s\n";
        assert_eq!(read(false, output).unwrap(), (120, 4, 71));
        assert!(read(false, "120 passed in 9.5s").is_err() && read(true, "Traceback").is_err());
        let long = "170 passed, 71 skipped in 191.44s (0:03:11)";
        assert_eq!(read(true, long).unwrap(), (170, 0, 71));
        assert_eq!(read(true, "24 passed, 1 warning in 37.06s").unwrap(), (24, 0, 0));
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
    fn steps_wait_for_those_that_they_name_unless_these_are_not_wanted() {
        static ORDER: Mutex<Vec<&str>> = Mutex::new(Vec::new());
        fn note(name: &'static str) -> Result<Report> {
            ORDER.lock().unwrap().push(name);
            Ok(Report::check(name))
        }
        const PLANNED: [Planned; 4] = [
            ("last", &["first", "second", "unwanted"], Do::Call(|| note("last"))),
            ("first", &[], Do::Call(|| note("first"))),
            ("second", &["first"], Do::Call(|| note("second"))),
            ("unwanted", &[], Do::Call(|| note("unwanted"))),
        ];
        let mut steps = Steps::only(&["first", "second", "last"].map(str::to_owned));
        steps.together(&PLANNED.each_ref());
        assert_eq!(*ORDER.lock().unwrap(), ["first", "second", "last"]);
        let finished: Vec<&str> = steps.finished.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(
            finished,
            ["last", "first", "second"],
            "the summary is in the order of the list"
        );
        assert_eq!(steps.finish(), ExitCode::SUCCESS);
    }

    #[test]
    fn a_step_that_does_not_exist_is_a_failure() {
        let mut steps = Steps::only(&["formats".to_owned()]);
        steps.run("format", || Ok(Report::check("")));
        assert_eq!(steps.finish(), ExitCode::FAILURE);
    }
}
