//! Random problems on several threads, until a number of problems or a time is reached.

mod generator;
mod shrink;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use msdeform::{Access, FROM_OFFSETS, Operator};
use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::device::{DeviceError, Result};
use crate::runner::{Checked, Counts, Coverage, Runner, check, check_watched};

pub use generator::{Bounds, Generator};
use shrink::shrink;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A number of problems of every dtype and direction.
    Problems(u64),
    Time(Duration),
}

#[derive(Clone, Debug)]
pub struct SoakOptions {
    pub bounds: Bounds,
    pub seed: u64,
    pub limit: Limit,
    pub threads: usize,
    /// Problems of one model: with more of them fewer kernels are compiled.
    pub sizes: usize,
    /// How long a launch may take before it is called hung.
    pub hung_after: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The line that makes it again, as small as it could be made.
    pub case: String,
    pub drawn: String,
    pub fault: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hang {
    pub case: String,
    pub seconds: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySample {
    pub seconds: u64,
    pub host_bytes: Option<u64>,
    pub device_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub problems: u64,
    pub failures: u64,
    pub elapsed: Duration,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SoakReport {
    /// Which problems: the same seed draws the same.
    pub seed: u64,
    pub seconds: f64,
    /// Problems compared, by format and direction.
    pub problems: BTreeMap<String, u64>,
    /// Problems that the variant which was named for them does not take.
    pub refused: u64,
    pub launches: u64,
    pub bytes: u64,
    pub failures: Vec<Failure>,
    /// How many went wrong, also those that are not listed.
    pub failed: u64,
    pub hangs: Vec<Hang>,
    /// The largest error of every format and tensor, as a part of what the contract allows.
    pub worst_of_allowed: BTreeMap<String, f64>,
    /// Problems that each variant computed, by the format of the values.
    pub variants: Counts,
    /// Those of them that called the fused operator.
    #[serde(default, rename = "variants_from_offsets", skip_serializing_if = "BTreeMap::is_empty")]
    pub variants_fused: Counts,
    /// Features of the rules that were met: knobs, kernels, formats, layouts, subsets of gradients, modes.
    pub features_met: usize,
    pub features: usize,
    pub features_missed: Vec<String>,
    /// Different pieces of code that ran.
    pub specialisations: usize,
    /// What the process grew by from the second quarter of the run to the last.
    pub host_growth_bytes: Option<u64>,
    /// What the device's memory in use grew by, likewise.
    pub device_growth_bytes: Option<u64>,
    /// Memory over time, thinned out.
    pub memory: Vec<MemorySample>,
}

impl SoakReport {
    pub fn is_clean(&self) -> bool {
        self.failed == 0 && self.hangs.is_empty()
    }

    /// Problems of the fused operator that something was launched for.
    pub fn total_fused(&self) -> u64 {
        self.variants_fused.values().flat_map(BTreeMap::values).sum()
    }

    pub fn total(&self) -> u64 {
        self.problems.values().sum()
    }
}

/// Failures that are listed; more would tell nothing new.
const LISTED_FAILURES: usize = 20;
/// Failures after which a run ends that has computed no problem: it would never reach its number of problems.
const HOPELESS_FAILURES: u64 = 100;
/// Failures that are made smaller: it takes as long as many problems.
const SHRUNK_FAILURES: usize = 4;
const SHRINK_TRIES: usize = 150;
/// Moments at which the report shows memory.
const LISTED_SAMPLES: usize = 40;
/// Models after which compiled code is given back.
const MODELS_BETWEEN_SETTLING: u64 = 192;
/// How often the run is looked at.
const TICK: Duration = Duration::from_millis(100);

/// Runs problems until the limit. `look` hears how it goes a few times a second, and of a hang at once with all
/// that is known by then: a hung thread cannot be stopped, so a caller that goes on has to leave the process.
pub fn soak(
    runner: &dyn Runner,
    options: &SoakOptions,
    look: &mut dyn FnMut(Progress, Option<&SoakReport>),
) -> SoakReport {
    let state = State::new(runner, options);
    // What a first problem leaves for ever (a context, a pool) is no leak. It is compared with the others later, in its turn.
    for case in state.generator.cases(0, 1) {
        let _ = check(runner, &case);
    }
    runner.settle();
    let workers = (0..options.threads).map(|_| Running::default()).collect::<Vec<_>>();
    let left = AtomicU64::new(options.threads as u64);
    std::thread::scope(|scope| {
        for running in &workers {
            let (state, left) = (&state, &left);
            scope.spawn(move || {
                state.work(running);
                left.fetch_sub(1, Ordering::AcqRel);
            });
        }
        while left.load(Ordering::Acquire) > 0 {
            std::thread::sleep(TICK);
            state.sample_memory();
            if let Some(hang) = find_hang(&workers, options.hung_after) {
                state.stop.store(true, Ordering::Relaxed);
                let is_new = !lock(&state.found).report.hangs.iter().any(|h| h.case == hang.case);
                if is_new {
                    lock(&state.found).report.hangs.push(hang);
                    look(state.progress(), Some(&state.summary()));
                }
            }
            look(state.progress(), None);
        }
    });
    runner.settle();
    state.sample_memory();
    state.summary()
}

/// The case whose kernels a worker waits for, and since when.
type Running = Mutex<Option<(String, Instant)>>;

fn find_hang(workers: &[Running], limit: Duration) -> Option<Hang> {
    workers.iter().find_map(|running| {
        let running = lock(running);
        let (case, since) = running.as_ref()?;
        let elapsed = since.elapsed();
        (elapsed > limit).then(|| Hang { case: case.clone(), seconds: elapsed.as_secs() })
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked left whole counts.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all workers add to.
struct Found {
    report: SoakReport,
    coverage: Coverage,
    memory: Vec<MemorySample>,
}

struct State<'a> {
    runner: &'a dyn Runner,
    options: &'a SoakOptions,
    generator: Generator<'a>,
    started: Instant,
    next_model: AtomicU64,
    stop: AtomicBool,
    found: Mutex<Found>,
}

impl<'a> State<'a> {
    fn new(runner: &'a dyn Runner, options: &'a SoakOptions) -> Self {
        let rules = runner.rules();
        let report = SoakReport { seed: options.seed, ..SoakReport::default() };
        let found = Found { report, coverage: rules.universe(), memory: Vec::new() };
        Self {
            runner,
            options,
            generator: Generator::new(rules, options.bounds.clone(), options.seed),
            started: Instant::now(),
            next_model: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            found: Mutex::new(found),
        }
    }

    fn is_done(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
            || match self.options.limit {
                Limit::Time(limit) => self.started.elapsed() >= limit,
                Limit::Problems(wanted) => {
                    let Bounds { dtypes, directions, .. } = &self.options.bounds;
                    let kinds = dtypes.len() * directions.len();
                    let report = &lock(&self.found).report;
                    let is_hopeless = report.total() == 0 && report.failed >= HOPELESS_FAILURES;
                    let reached = report.problems.values().filter(|&&count| count >= wanted);
                    is_hopeless || reached.count() >= kinds
                }
            }
    }

    fn work(&self, running: &Running) {
        while !self.is_done() {
            let number = self.next_model.fetch_add(1, Ordering::Relaxed);
            for case in self.generator.cases(number, self.options.sizes) {
                if self.is_done() {
                    break;
                }
                let checked = self.check(running, &case);
                self.count(running, &case, checked);
            }
            if (number + 1).is_multiple_of(MODELS_BETWEEN_SETTLING) {
                self.runner.settle();
            }
        }
    }

    fn check(&self, running: &Running, case: &Case) -> Result<Checked> {
        check_watched(self.runner, case, &mut |is_running| {
            *lock(running) = is_running.then(|| (case.to_string(), Instant::now()));
        })
    }

    fn count(&self, running: &Running, case: &Case, checked: Result<Checked>) {
        let (fault, can_shrink) = match checked {
            Err(DeviceError::Refused { .. }) => {
                lock(&self.found).report.refused += 1;
                return;
            }
            Err(DeviceError::Lost { reason }) => {
                self.stop.store(true, Ordering::Relaxed);
                (reason, false)
            }
            Err(error) => (error.to_string(), true),
            Ok(checked) => {
                lock(&self.found).count(case, &checked);
                let Some(fault) = checked.fault() else { return };
                (fault.to_owned(), true)
            }
        };
        let known = {
            let report = &mut lock(&self.found).report;
            report.failed += 1;
            report.failed as usize
        };
        let smallest = if can_shrink && known <= SHRUNK_FAILURES {
            shrink(case, SHRINK_TRIES, |candidate| match self.check(running, candidate) {
                Ok(checked) => checked.fault().is_some(),
                Err(error) => !matches!(error, DeviceError::Refused { .. }),
            })
        } else {
            case.clone()
        };
        let failure = Failure { case: smallest.to_string(), drawn: case.to_string(), fault };
        let failures = &mut lock(&self.found).report.failures;
        if failures.len() < LISTED_FAILURES {
            failures.push(failure);
        }
    }

    fn sample_memory(&self) {
        let sample = MemorySample {
            seconds: self.started.elapsed().as_secs(),
            host_bytes: resident_bytes(),
            device_bytes: self.runner.device_bytes(),
        };
        lock(&self.found).memory.push(sample);
    }

    fn progress(&self) -> Progress {
        let report = &lock(&self.found).report;
        let (problems, failures) = (report.total(), report.failed);
        Progress { problems, failures, elapsed: self.started.elapsed() }
    }

    fn summary(&self) -> SoakReport {
        let Found { report, coverage, memory } = &*lock(&self.found);
        let every = memory.len().div_ceil(LISTED_SAMPLES).max(1);
        SoakReport {
            seconds: self.started.elapsed().as_secs_f64(),
            features_met: coverage.met(),
            features: coverage.possible(),
            features_missed: coverage.missed().map(str::to_owned).collect(),
            specialisations: coverage.specialisations(),
            variants: coverage.computed(&Operator::ALL),
            variants_fused: coverage.computed(&[&FROM_OFFSETS]),
            host_growth_bytes: growth(memory, |sample| sample.host_bytes),
            device_growth_bytes: growth(memory, |sample| sample.device_bytes),
            memory: memory.iter().step_by(every).copied().collect(),
            ..report.clone()
        }
    }
}

impl Found {
    fn count(&mut self, case: &Case, checked: &Checked) {
        self.coverage.meet(case, &checked.resolved);
        let kind = format!("{} {}", case.problem.dtype(), case.direction());
        *self.report.problems.entry(kind).or_insert(0) += 1;
        self.report.launches += checked.launches;
        self.report.bytes += checked.bytes;
        let written = case.tensors().filter(|(_, access)| *access == Access::Write);
        for ((role, _), (dtype, verdict)) in written.zip(&checked.verdicts) {
            let tensor = format!("{dtype} {}", role.field());
            let worst = self.report.worst_of_allowed.entry(tensor).or_insert(0.0);
            if verdict.of_allowed > *worst || verdict.of_allowed.is_nan() {
                *worst = verdict.of_allowed;
            }
        }
    }
}

/// From the least that was held in the second quarter to the least of the last: what comes and goes with
/// single problems is no growth, and the first quarter fills pools.
fn growth(samples: &[MemorySample], bytes: impl Fn(&MemorySample) -> Option<u64>) -> Option<u64> {
    let least = |part: usize| {
        let quarter = samples.len() * part / 4..samples.len() * (part + 1) / 4;
        samples[quarter].iter().filter_map(&bytes).min()
    };
    Some(least(3)?.saturating_sub(least(1)?))
}

/// Memory that the process holds, if the system tells it.
fn resident_bytes() -> Option<u64> {
    const PAGE_BYTES: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostTensors;
    use crate::device::{Prepared, Ready};
    use crate::runner::{CpuRunner, Rules};

    fn options(limit: Limit) -> SoakOptions {
        SoakOptions {
            bounds: Bounds { strided: false, work: 20_000, ..Bounds::default() },
            seed: 3,
            limit,
            threads: 2,
            sizes: 4,
            hung_after: Duration::from_secs(20),
        }
    }

    #[test]
    fn so_many_of_each_kind_are_run_and_counted() {
        let report = soak(&CpuRunner, &options(Limit::Problems(8)), &mut |_, _| ());
        assert!(report.is_clean(), "{:?}", report.failures);
        assert_eq!(report.problems.len(), 6, "{:?}", report.problems);
        assert!(report.problems.values().all(|&count| count >= 8), "{:?}", report.problems);
        assert!(report.bytes > 0 && report.features_met > 0);
    }

    /// Computes on the CPU and changes the results.
    struct Spoiler(fn(&Case, HostTensors) -> Result<HostTensors>);

    impl Runner for Spoiler {
        fn rules(&self) -> &dyn Rules {
            &CpuRunner
        }
        fn prepare<'a>(&'a self, case: &'a Case, inputs: &'a HostTensors) -> Result<Ready<'a>> {
            Ok(Box::new(Spoiled { case, spoil: self.0, honest: CpuRunner.prepare(case, inputs)? }))
        }
    }

    struct Spoiled<'a> {
        case: &'a Case,
        spoil: fn(&Case, HostTensors) -> Result<HostTensors>,
        honest: Ready<'a>,
    }

    impl Prepared for Spoiled<'_> {
        fn poison(&mut self) -> Result<()> {
            self.honest.poison()
        }
        fn run(&mut self) -> Result<()> {
            self.honest.run()
        }
        fn read(&mut self) -> Result<HostTensors> {
            (self.spoil)(self.case, self.honest.read()?)
        }
        fn is_reproducible(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_run_that_computes_no_problem_ends() {
        let exhausted = Spoiler(|_, _| Err(DeviceError::Failed { reason: "no memory".into() }));
        let report = soak(&exhausted, &options(Limit::Problems(1)), &mut |_, _| ());
        assert!(report.problems.is_empty() && !report.is_clean());
        assert!(report.failed >= HOPELESS_FAILURES, "{}", report.failed);
    }

    #[test]
    fn a_wrong_result_is_found_and_made_small() {
        let thin = |case: &Case| case.problem.levels().iter().any(|level| level.height == 1);
        let spoil = Spoiler(|case, mut written| {
            if case.problem.levels().iter().any(|level| level.height == 1) {
                let (role, first) = written.iter().next().unwrap();
                written.set(role, &vec![1.06; first.len()]);
            }
            Ok(written)
        });
        let report = soak(&spoil, &options(Limit::Problems(10)), &mut |_, _| ());
        assert!(!report.is_clean());
        let case: Case = report.failures[0].case.parse().unwrap();
        assert!(thin(&case), "{case}");
        assert!(case.work() < 300, "{case} is not small");
    }

    #[test]
    fn a_launch_that_does_not_come_back_is_a_row_at_once() {
        let hang = Spoiler(|_, written| {
            std::thread::sleep(Duration::from_millis(900));
            Ok(written)
        });
        let mut options = options(Limit::Problems(1));
        options.hung_after = Duration::from_millis(100);
        let mut heard = None;
        let report = soak(&hang, &options, &mut |progress, report| {
            if let Some(report) = report {
                heard.get_or_insert((progress.elapsed, report.hangs.clone()));
            }
        });
        let (after, hangs) = heard.unwrap();
        assert!(after < Duration::from_secs(4), "{after:?}");
        hangs[0].case.parse::<Case>().unwrap();
        assert!(!report.is_clean());
    }

    #[test]
    fn memory_that_comes_and_goes_is_no_growth() {
        let at = |second: u64, bytes: u64| MemorySample {
            seconds: second,
            host_bytes: Some(bytes),
            device_bytes: None,
        };
        let host = |samples: &[MemorySample]| growth(samples, |sample| sample.host_bytes);
        let flat: Vec<_> = (0..100).map(|s| at(s, 100 + s % 7)).collect();
        assert_eq!(host(&flat), Some(0));
        assert_eq!(growth(&flat, |sample| sample.device_bytes), None);
        let rising: Vec<_> = (0..100).map(|s| at(s, 100 + s)).collect();
        assert_eq!(host(&rising), Some(50));
    }
}
