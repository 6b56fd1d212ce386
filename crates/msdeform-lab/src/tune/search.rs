//! The search itself.

use std::time::Instant;

use crate::device::{Device, DeviceError, KnobbedVariant, Prepared, Timing};
use crate::oracle::Oracle;
use crate::{HostTensors, Statistics};
use msdeform::{Numerics, Problem, VariantSpec};
use msdeform_cuda::tuning::Contender;

use super::{Dropped, Finalist, Inputs, Share};

/// Samples of a first look.
const SCREENING_SAMPLES: usize = 5;
/// A choice this much slower than the quickest, both by the wall clock, is not timed: it would take the time of many others.
/// The slack is for calls of microseconds. One interrupted run does not make a choice slow: so many runs must be slow.
const HOPELESS_FACTOR: f64 = 3.0;
const HOPELESS_SLACK_US: f64 = 1000.0;
const HOPELESS_RUNS: usize = 3;
/// Knobs are turned for variants whose time is within this factor of the best one's, at most so many.
const RIVAL_FACTOR: f64 = 1.5;
const RIVALS: usize = 2;
/// A knob that gains less alone is not tried with others.
const KNOB_GAIN: f64 = 0.005;
/// Screening ends when this part of the share is used.
const SCREENING_PART: f64 = 0.7;
/// Survivors of the screening, and how many are left for the last round.
const SURVIVORS: usize = 8;
const FINALISTS: usize = 3;
/// Turns of the last round, and samples of a turn.
const FINAL_TURNS: usize = 10;
const SAMPLES_OF_TURN: usize = 5;
/// The built-in choice stays unless another one gains this much, and more than the spread of both.
const LEAST_GAIN: f64 = 0.01;

/// A choice that is right, and how long it took so far.
pub(super) struct Candidate {
    choice: KnobbedVariant,
    rel_l2: f64,
    /// From the call to the end of its work, by the wall clock.
    wall_us: f64,
    median_us: f64,
}

/// The variants that could do a call instead of the built-in one, with their own knobs. Ladder rungs outside of the
/// accuracy contract are no choice for a user who did not name them.
pub(super) fn as_they_are(
    device: &dyn Device,
    problem: &Problem,
    builtin: &VariantSpec,
    variants: &[&'static VariantSpec],
) -> Vec<KnobbedVariant> {
    let fits = |spec: &&&'static VariantSpec| {
        spec.direction == builtin.direction
            && spec.numerics == Numerics::Contract
            && spec.id != builtin.id
            && device.supports(spec, problem).is_ok()
    };
    variants.iter().filter(fits).map(|&spec| KnobbedVariant::own(spec)).collect()
}

/// A choice with one knob turned, in every way it can be: a value of each knob, then another of each, so that little
/// time meets all knobs.
pub(super) fn neighbours(
    device: &dyn Device,
    problem: &Problem,
    own: &KnobbedVariant,
) -> Vec<KnobbedVariant> {
    let mut found = Vec::new();
    for setting in device.settings(own.variant, problem) {
        let others = setting.values.iter().filter(|&&value| value != setting.value);
        for (turn, &value) in others.enumerate() {
            let mut choice = own.clone();
            choice.knobs.insert(setting.name.to_owned(), value);
            found.push((turn, choice));
        }
    }
    found.sort_by_key(|(turn, _)| *turn);
    found.into_iter().map(|(_, choice)| choice).collect()
}

pub(super) struct Search<'a> {
    device: &'a dyn Device,
    problem: &'a Problem,
    inputs: &'a HostTensors,
    /// In full size, for the clock.
    stand: Box<dyn Prepared + 'a>,
    verified: &'a Problem,
    /// Smaller, for the reference.
    judge: Box<dyn Prepared + 'a>,
    oracle: Oracle,
    builtin: KnobbedVariant,
    share: Share,
    pub(super) clock: Timing,
    pub(super) choices: usize,
    pub(super) candidates: Vec<Candidate>,
    pub(super) dropped: Vec<Dropped>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        device: &'a dyn Device,
        inputs: &'a Inputs,
        builtin: &KnobbedVariant,
        share: Share,
    ) -> Result<Self, DeviceError> {
        let (problem, inputs, verified, verified_inputs) =
            (&inputs.problem, &inputs.whole, &inputs.verified, &inputs.part);
        let stand = device.prepare(&[builtin.variant], problem, inputs)?;
        let clock = stand.clocks().first().copied().unwrap_or(Timing::Cpu);
        Ok(Self {
            device,
            problem,
            inputs,
            stand,
            verified,
            judge: device.prepare(&[builtin.variant], verified, verified_inputs)?,
            oracle: Oracle::new(verified, verified_inputs, &[builtin.variant]),
            builtin: builtin.clone(),
            share,
            clock,
            choices: 0,
            candidates: Vec::new(),
            dropped: Vec::new(),
        })
    }

    pub(super) fn variant_of(&self, finalist: &Finalist) -> &'static VariantSpec {
        let same = |c: &&Candidate| c.choice.variant.id == finalist.contender.variant;
        self.candidates.iter().find(same).map_or(self.builtin.variant, |c| c.choice.variant)
    }

    /// Screens everything there is, or what there is time for.
    pub(super) fn run(
        &mut self,
        variants: &[&'static VariantSpec],
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), DeviceError> {
        let others = as_they_are(self.device, self.problem, self.builtin.variant, variants);
        self.screen_all(vec![self.builtin.clone()], true, progress);
        if self.candidates.is_empty() {
            let reason = self.dropped.pop().map_or_else(String::new, |dropped| dropped.reason);
            let variant = self.builtin.variant.id;
            return Err(DeviceError::Unsupported { variant, reason });
        }
        self.screen_all(others, true, progress);
        for rival in self.rivals() {
            let neighbours = neighbours(self.device, self.problem, &rival);
            self.screen_all(neighbours, false, progress);
            self.combine(&rival, progress);
        }
        Ok(())
    }

    /// Choices that were timed, the fastest first.
    fn fastest(&self, is_meant: impl Fn(&Candidate) -> bool) -> Vec<KnobbedVariant> {
        let mut meant: Vec<&Candidate> = self.candidates.iter().filter(|c| is_meant(c)).collect();
        meant.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
        meant.into_iter().map(|c| c.choice.clone()).collect()
    }

    /// The variants whose knobs are worth turning, best first.
    fn rivals(&self) -> Vec<KnobbedVariant> {
        let best = self.candidates.iter().map(|c| c.median_us).fold(f64::INFINITY, f64::min);
        let mut near = self.fastest(|c| c.median_us <= RIVAL_FACTOR * best);
        near.truncate(RIVALS);
        near
    }

    /// The knobs that gained something alone, together, as long as each one still gains.
    fn combine(&mut self, own: &KnobbedVariant, progress: &mut dyn FnMut(&str)) {
        let time_of = |search: &Self, choice: &KnobbedVariant| {
            let found = search.candidates.iter().find(|c| c.choice == *choice);
            found.map_or(f64::INFINITY, |c| c.median_us)
        };
        let limit = (1.0 - KNOB_GAIN) * time_of(self, own);
        let is_helpful = |c: &Candidate| {
            c.choice.variant.id == own.variant.id
                && c.choice.knobs.len() == 1
                && c.median_us < limit
        };
        let mut helpful = self.fastest(is_helpful).into_iter();
        let Some(mut best) = helpful.next() else { return };
        for next in helpful {
            if next.knobs.keys().any(|name| best.knobs.contains_key(name)) {
                continue;
            }
            let mut both = best.clone();
            both.knobs.extend(next.knobs);
            self.screen_all(vec![both.clone()], false, progress);
            if time_of(self, &both) < time_of(self, &best) {
                best = both;
            }
        }
    }

    /// Verifies and times choices; `always` even where time is up.
    fn screen_all(
        &mut self,
        choices: Vec<KnobbedVariant>,
        always: bool,
        progress: &mut dyn FnMut(&str),
    ) {
        let admitted = |choice: &KnobbedVariant| self.device.admits(choice, self.problem).is_ok();
        let choices: Vec<KnobbedVariant> = choices.into_iter().filter(admitted).collect();
        self.choices += choices.len();
        // As many at a time as compile side by side: what waits for a second batch may be out of time.
        for together in choices.chunks(rayon::current_num_threads()) {
            if !always && self.share.is_past(SCREENING_PART) {
                return;
            }
            progress(&format!("compiling {}", together.len()));
            self.device.compile(together, self.problem);
            for choice in together {
                if !always && self.share.is_past(SCREENING_PART) {
                    return;
                }
                progress(&choice.to_string());
                match self.screen(choice) {
                    Ok(candidate) => self.candidates.push(candidate),
                    Err(reason) => {
                        self.dropped.push(Dropped { choice: choice.to_string(), reason });
                    }
                }
            }
        }
    }

    /// A first look at a choice, or why it is dropped.
    fn screen(&mut self, choice: &KnobbedVariant) -> Result<Candidate, String> {
        let rel_l2 = self.verify(choice)?;
        let (wall_us, median_us) = self.first_look(choice).map_err(|error| error.to_string())?;
        if !median_us.is_finite() {
            return Err("its clock returned no time".to_owned());
        }
        Ok(Candidate { choice: choice.clone(), rel_l2, wall_us, median_us })
    }

    /// About how long a choice takes, by the wall clock and by the device's; a choice that is far behind by the
    /// wall clock is not timed by the other.
    fn first_look(&mut self, choice: &KnobbedVariant) -> Result<(f64, f64), DeviceError> {
        let quickest = self.candidates.iter().map(|c| c.wall_us).fold(f64::INFINITY, f64::min);
        let limit_us = HOPELESS_FACTOR * quickest + HOPELESS_SLACK_US;
        self.stand.switch(choice)?;
        // The first run pays for what happens only once.
        self.stand.run()?;
        let mut wall_us = f64::INFINITY;
        for _ in 0..HOPELESS_RUNS {
            let start = Instant::now();
            self.stand.run()?;
            wall_us = wall_us.min(start.elapsed().as_secs_f64() * 1e6);
            if wall_us <= limit_us {
                break;
            }
        }
        if wall_us > limit_us {
            return Ok((wall_us, wall_us));
        }
        let samples_us = self.stand.time(self.clock, SCREENING_SAMPLES)?;
        let statistics = Statistics::of(&samples_us);
        Ok((wall_us, statistics.map_or(f64::NAN, |statistics| statistics.median_us)))
    }

    /// Compares a choice with the reference; its worst error.
    fn verify(&mut self, choice: &KnobbedVariant) -> Result<f64, String> {
        // With the knobs of the full size, where the smaller one would choose others: it is the same code that is
        // compared then. What it cannot have at that size it chooses itself.
        let judged = self.as_in_full_size(choice);
        let fits = self.device.admits(&judged, self.verified).is_ok();
        self.judge
            .switch(if fits { &judged } else { choice })
            .map_err(|error| error.to_string())?;
        let outputs = self.judge.run_twice(choice.variant.id).map_err(|error| error.to_string())?;
        let checks = self.oracle.check(&outputs, choice.variant, self.verified);
        let mut worst = 0.0f64;
        for check in checks {
            let error = check.comparison.rel_l2;
            // Written so that NaN is over the bound.
            if !check.pass {
                let (tensor, bound) = (check.tensor, check.bound);
                return Err(format!("{tensor} is off by {error:.1e}, the bound is {bound:.0e}"));
            }
            worst = worst.max(error);
        }
        Ok(worst)
    }

    /// The choice with every knob set to what it is in full size.
    fn as_in_full_size(&self, choice: &KnobbedVariant) -> KnobbedVariant {
        let mut full = choice.clone();
        for setting in self.device.settings(choice.variant, self.problem) {
            full.knobs.entry(setting.name.to_owned()).or_insert(setting.value);
        }
        full
    }

    fn time(&mut self, choice: &KnobbedVariant, samples: usize) -> Result<Vec<f64>, DeviceError> {
        self.stand.switch(choice)?;
        self.stand.run()?;
        self.stand.time(self.clock, samples)
    }

    /// The best choice and the built-in one, from fresh samples taken in turns.
    pub(super) fn decide(
        &mut self,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(Finalist, Finalist), DeviceError> {
        let mut survivors = self.fastest(|_| true);
        survivors.truncate(SURVIVORS);
        let mut turns = 2;
        while survivors.len() > FINALISTS {
            progress(&format!("{} left", survivors.len()));
            let kept = survivors.len().div_ceil(2).max(FINALISTS);
            let timed = self.take_turns(survivors, turns)?;
            survivors = timed.into_iter().take(kept).map(|(choice, _)| choice).collect();
            turns *= 2;
        }
        survivors.retain(|choice| *choice != self.builtin);
        survivors.push(self.builtin.clone());
        progress("the last round");
        let mut ranked = self.take_turns(survivors, FINAL_TURNS)?;
        let Some(at) = ranked.iter().position(|(choice, _)| *choice == self.builtin) else {
            return Err(self.broken("nothing was timed"));
        };
        let (builtin, of_builtin) = ranked.remove(at);
        let builtin = self.finalist(&builtin, &of_builtin);
        for (choice, statistics) in ranked {
            let gain = of_builtin.median_us - statistics.median_us;
            let spread = of_builtin.mad_us + statistics.mad_us;
            if gain <= (LEAST_GAIN * of_builtin.median_us).max(spread) {
                break;
            }
            match self.agrees_in_full_size(&choice) {
                Ok(()) => return Ok((self.finalist(&choice, &statistics), builtin)),
                Err(reason) => self.dropped.push(Dropped { choice: choice.to_string(), reason }),
            }
        }
        Ok((builtin.clone(), builtin))
    }

    /// Times choices in turns, the fastest first. The time that is left ends it, though not before everyone had a turn.
    fn take_turns(
        &mut self,
        choices: Vec<KnobbedVariant>,
        turns: usize,
    ) -> Result<Vec<(KnobbedVariant, Statistics)>, DeviceError> {
        let mut samples_us = vec![Vec::new(); choices.len()];
        for turn in 0..turns {
            if turn > 0 && self.share.is_past(1.0) {
                break;
            }
            for (choice, samples) in choices.iter().zip(&mut samples_us) {
                samples.extend(self.time(choice, SAMPLES_OF_TURN)?);
            }
        }
        let statistics = samples_us.iter().map(|samples| Statistics::of(samples));
        let timed = choices.into_iter().zip(statistics).map(|(choice, of)| Some((choice, of?)));
        let mut timed: Vec<_> = timed
            .collect::<Option<_>>()
            .ok_or_else(|| self.broken("the clock returned no time"))?;
        timed.sort_by(|(_, a), (_, b)| a.median_us.total_cmp(&b.median_us));
        Ok(timed)
    }

    /// The reference is too slow for the whole call, but the built-in choice has been held against it on a part: in
    /// full size two choices that are both right differ by no more than both bounds.
    fn agrees_in_full_size(&mut self, choice: &KnobbedVariant) -> Result<(), String> {
        let mut run = |choice: &KnobbedVariant| {
            self.stand.switch(choice)?;
            self.stand.run_twice(choice.variant.id)
        };
        let trusted = run(&self.builtin.clone()).map_err(|error| error.to_string())?;
        let found = run(choice).map_err(|error| error.to_string())?;
        let oracle = Oracle::of_outputs(self.problem, self.inputs, &trusted);
        for check in oracle.check(&found, choice.variant, self.problem) {
            // Written so that NaN is too far.
            let is_within = check.comparison.rel_l2 <= 2.0 * check.bound;
            if !is_within {
                return Err(format!(
                    "{} in full size is {:.1e} from the built-in choice's, twice the bound is {:.0e}",
                    check.tensor,
                    check.comparison.rel_l2,
                    2.0 * check.bound
                ));
            }
        }
        Ok(())
    }

    fn finalist(&self, choice: &KnobbedVariant, statistics: &Statistics) -> Finalist {
        let candidate = self.candidates.iter().find(|c| c.choice == *choice);
        Finalist {
            contender: Contender {
                variant: choice.variant.id.to_owned(),
                knobs: choice.knobs.clone(),
                time_us: statistics.median_us,
            },
            mad_us: statistics.mad_us,
            runs: statistics.runs,
            rel_l2: candidate.map_or(f64::NAN, |c| c.rel_l2),
        }
    }

    fn broken(&self, reason: &str) -> DeviceError {
        DeviceError::Unsupported { variant: self.builtin.variant.id, reason: reason.to_owned() }
    }
}
