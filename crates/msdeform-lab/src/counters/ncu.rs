//! Nsight Compute: where it is, and how to run it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{COUNTERS, KernelCounters, parse};

#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    #[error(
        "Nsight Compute (`ncu`) is not installed: it comes with the CUDA toolkit; put it on the PATH or name it in \
         MSDEFORM_NCU. Everything else works without it, and --csv reads a table made elsewhere"
    )]
    Missing,
    #[error("cannot run {}: {source}", path.display())]
    Start { path: PathBuf, source: std::io::Error },
    #[error("ncu failed: {message}")]
    Failed { message: String },
    /// It printed something other than the table.
    #[error("cannot read the counters: {0}")]
    Table(String),
}

pub(crate) const NCU_VARIABLE: &str = "MSDEFORM_NCU";

/// The profiler: the one that `MSDEFORM_NCU` names, on the PATH, or of a CUDA toolkit in its usual place.
pub fn find_ncu() -> Result<PathBuf, CounterError> {
    if let Some(named) = std::env::var_os(NCU_VARIABLE).filter(|named| !named.is_empty()) {
        return Ok(PathBuf::from(named));
    }
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&on_path)
        .chain([PathBuf::from("/usr/local/cuda/bin"), PathBuf::from("/opt/nvidia/nsight-compute")]);
    let found = folders.map(|folder| folder.join("ncu")).find(|file| file.is_file());
    found.ok_or(CounterError::Missing)
}

/// The command that counts what `program` does with `arguments`: launches of kernels whose name matches `kernels`
/// (a regular expression), the first `skip` of them not.
pub fn command(
    ncu: &Path,
    kernels: &str,
    skip: usize,
    count: usize,
    program: &Path,
    arguments: &[OsString],
) -> Command {
    let metrics: Vec<&str> = COUNTERS.iter().map(|counter| counter.metric).collect();
    let mut command = Command::new(ncu);
    // Clocks and caches stay as they are in a timed run: warm, and not locked to another frequency.
    command
        .args(["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"])
        .args(["--cache-control", "none"])
        .args(["--kernel-name-base", "function", "--kernel-name"])
        .arg(format!("regex:{kernels}"))
        .args(["--launch-skip", &skip.to_string(), "--launch-count", &count.to_string()])
        .args(["--metrics", &metrics.join(",")])
        .arg(program)
        .args(arguments);
    command
}

pub fn run(mut command: Command) -> Result<(String, Vec<KernelCounters>), CounterError> {
    let path = PathBuf::from(command.get_program());
    let output = command.output().map_err(|source| CounterError::Start { path, source })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let both = format!("{}\n{text}", String::from_utf8_lossy(&output.stderr));
        let errors: Vec<&str> = both.lines().filter(|line| line.contains("==ERROR==")).collect();
        let last = both.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output");
        let message = if errors.is_empty() { last.to_owned() } else { errors.join("; ") };
        return Err(CounterError::Failed { message });
    }
    let kernels = parse(&text).map_err(CounterError::Table)?;
    Ok((text, kernels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_every_counter_and_leaves_the_clocks_alone() {
        let command = command(
            Path::new("ncu"),
            "^fwd_",
            3,
            1,
            Path::new("msdeform"),
            &["bench".into(), "--no-verify".into()],
        );
        let arguments: Vec<String> =
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let line = arguments.join(" ");
        assert!(line.contains("--clock-control none") && line.contains("regex:^fwd_"), "{line}");
        assert!(line.ends_with("msdeform bench --no-verify"), "{line}");
        assert!(COUNTERS.iter().all(|counter| line.contains(counter.metric)));
    }

    #[test]
    fn a_profiler_that_fails_is_quoted() {
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo '==ERROR== no permission'; exit 1"]);
        let error = run(failing).unwrap_err().to_string();
        assert!(error.contains("no permission"), "{error}");
        let error = run(Command::new("msdeform-no-such-profiler")).unwrap_err().to_string();
        assert!(error.contains("msdeform-no-such-profiler"), "{error}");
    }
}
