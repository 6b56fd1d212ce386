//! The report of a run.

use std::fmt;

use msdeform_lab::Buffer;
use msdeform_lab::oracle::TensorCheck;
use serde::Serialize;

use super::compute::Pass;

/// The report of a run; the field names are an interface for scripts.
#[derive(Debug, Serialize)]
pub struct Report {
    pub problem: String,
    pub device: String,
    pub threads: Option<usize>,
    /// Inputs that hold NaN or infinities.
    pub not_finite: Vec<NotFinite>,
    pub passes: Vec<Pass>,
    /// Where each tensor went; empty if the check failed.
    pub written: Vec<Written>,
    pub passed: bool,
    #[serde(skip)]
    pub has_idle_gradient: bool,
}

#[derive(Debug, Serialize)]
pub struct NotFinite {
    tensor: &'static str,
    nan: usize,
    infinite: usize,
    elements: usize,
}

impl NotFinite {
    pub fn of(tensor: &'static str, buffer: &Buffer) -> Option<Self> {
        let (nan, infinite) = buffer.count_not_finite();
        (nan + infinite > 0).then_some(Self { tensor, nan, infinite, elements: buffer.len() })
    }
}

#[derive(Debug, Serialize)]
pub struct Written {
    pub tensor: &'static str,
    pub file: String,
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
        for Pass { direction, variant, time_us, checks, .. } in &self.passes {
            writeln!(to, "{direction:<9} {variant}, {:.3} ms", time_us / 1e3)?;
            checks.iter().try_for_each(|check| write_check(to, check))?;
        }
        let written = self.written.iter();
        let mut lines: Vec<String> = written
            .map(|Written { tensor, file }| format!("wrote     {tensor} to {file}"))
            .collect();
        if self.has_idle_gradient {
            lines.push("grad_output is there too: --backward computes the gradients".to_owned());
        }
        write!(to, "{}", lines.join("\n"))
    }
}

fn write_check(to: &mut fmt::Formatter<'_>, check: &TensorCheck) -> fmt::Result {
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
    for (count, what) in [
        (comparison.not_finite_in_both, "and in the reference alike: agreement"),
        (comparison.not_finite_in_one, "or in the reference, but not alike: within no bound"),
    ] {
        if count > 0 {
            writeln!(to, "          {count} not finite here {what}")?;
        }
    }
    Ok(())
}
