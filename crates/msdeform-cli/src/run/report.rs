//! What a run says about itself.

use std::fmt;

use msdeform::Problem;
use msdeform_bench::verify::TensorCheck;
use serde::Serialize;

use super::compute::Computation;
use super::write::Target;

/// Everything a run has to say; the field names are an interface for scripts.
#[derive(Debug, Serialize)]
pub struct Report {
    problem: String,
    device: String,
    threads: Option<usize>,
    passes: Vec<Pass>,
    /// Where each tensor went; empty if the check failed.
    written: Vec<Written>,
    passed: bool,
    #[serde(skip)]
    idle_gradient: bool,
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
    /// Collects what is to be said.
    pub fn new(
        problem: &Problem,
        computation: &Computation,
        target: &Target,
        passed: bool,
        idle_gradient: bool,
    ) -> Self {
        let backward = computation.passes.len() > 1;
        let names = Computation::tensor_names(backward).iter().filter(|_| passed);
        let passes = computation.passes.iter().map(|pass| Pass {
            direction: pass.direction.name(),
            variant: pass.variant,
            time_us: pass.time_us,
            checks: pass.checks.clone(),
        });
        Self {
            problem: problem.to_string(),
            device: computation.device.clone(),
            threads: computation.threads,
            passes: passes.collect(),
            written: names
                .map(|&tensor| Written { tensor, file: target.file(tensor).display().to_string() })
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
