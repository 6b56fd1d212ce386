//! The report of a run.

use std::fmt;

use msdeform_devices::Buffer;
use msdeform_devices::oracle::TensorCheck;
use serde::Serialize;

use super::compute::Computation;
use super::decode::Call;
use super::write::Target;

/// The report of a run; the field names are an interface for scripts.
#[derive(Debug, Serialize)]
pub struct Report {
    problem: String,
    device: String,
    threads: Option<usize>,
    /// Inputs that hold NaN or infinities.
    not_finite: Vec<NotFinite>,
    passes: Vec<Pass>,
    /// Where each tensor went; empty if the check failed.
    written: Vec<Written>,
    passed: bool,
    #[serde(skip)]
    idle_gradient: bool,
}

#[derive(Debug, Serialize)]
struct NotFinite {
    tensor: &'static str,
    nan: usize,
    infinite: usize,
    elements: usize,
}

impl NotFinite {
    fn of(tensor: &'static str, buffer: &Buffer) -> Option<Self> {
        let (nan, infinite) = buffer.count_not_finite();
        (nan + infinite > 0).then_some(Self { tensor, nan, infinite, elements: buffer.len() })
    }
}

#[derive(Debug, Serialize)]
struct Pass {
    direction: &'static str,
    variant: &'static str,
    time_us: f64,
    checks: Vec<TensorCheck>,
}

#[derive(Debug, Serialize)]
struct Written {
    tensor: &'static str,
    file: String,
}

impl Report {
    /// Collects the report.
    pub fn new(
        call: &Call,
        computation: &Computation,
        target: &Target,
        passed: bool,
        idle_gradient: bool,
    ) -> Self {
        let backward = computation.passes.len() > 1;
        let operator = call.described.problem.operator();
        let names = Computation::tensor_names(operator, backward).into_iter().filter(|_| passed);
        let passes = computation.passes.iter().map(|pass| Pass {
            direction: pass.direction.name(),
            variant: pass.variant,
            time_us: pass.time_us,
            checks: pass.checks.clone(),
        });
        let inputs = call.inputs.iter();
        Self {
            problem: call.described.problem.to_string(),
            not_finite: inputs.filter_map(|(role, x)| NotFinite::of(role.name(), x)).collect(),
            device: computation.device.clone(),
            threads: computation.threads,
            passes: passes.collect(),
            written: names
                .map(|tensor| Written { tensor, file: target.file(tensor).display().to_string() })
                .collect(),
            passed,
            idle_gradient,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "problem   {}", self.problem)?;
        let threads = self.threads.map(|n| format!(", {n} threads")).unwrap_or_default();
        writeln!(to, "device    {}{threads}", self.device)?;
        for NotFinite { tensor, nan, infinite, elements } in &self.not_finite {
            writeln!(
                to,
                "note      {tensor} holds {nan} NaN and {infinite} infinite of {elements}"
            )?;
        }
        for Pass { direction, variant, time_us, checks } in &self.passes {
            writeln!(to, "{direction:<9} {variant}, {:.3} ms", time_us / 1e3)?;
            for check in checks {
                let TensorCheck { tensor, comparison, bound, pass } = check;
                let verdict = if *pass { "pass" } else { "FAIL" };
                write!(
                    to,
                    "  {verdict}    {tensor}: max abs {:.2e}, max rel {:.2e}, relative L2 {:.2e} \
                     (bound {bound:.0e}), {} elements",
                    comparison.max_abs, comparison.max_rel, comparison.rel_l2, comparison.elements
                )?;
                match comparison.left_out {
                    0 => writeln!(to)?,
                    count => writeln!(to, ", {count} on cell borders left out")?,
                }
                if comparison.not_finite_in_both > 0 {
                    let count = comparison.not_finite_in_both;
                    writeln!(
                        to,
                        "          {count} not finite here and in the reference alike: agreement"
                    )?;
                }
                if comparison.not_finite_in_one > 0 {
                    let count = comparison.not_finite_in_one;
                    writeln!(
                        to,
                        "          {count} not finite here or in the reference, but not alike: within no bound"
                    )?;
                }
            }
        }
        let mut lines = self
            .written
            .iter()
            .map(|Written { tensor, file }| format!("wrote     {tensor} to {file}"))
            .collect::<Vec<_>>();
        if self.idle_gradient {
            lines.push("grad_output is there too: --backward computes the gradients".to_owned());
        }
        write!(to, "{}", lines.join("\n"))
    }
}
