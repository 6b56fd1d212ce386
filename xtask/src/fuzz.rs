//! `cargo xtask fuzz`: random bytes for every reader of files.
//!
//! The readers are in `fuzz/src`. A finding is printed with its file: fix it, and add the file to `fuzz/seeds`, which run in
//! every test run.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::process::{capture, run};
use crate::tree;

/// Options of `fuzz`.
#[derive(Args)]
pub struct FuzzArgs {
    /// Targets by name [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Seconds for each
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
}

/// The targets, which only a nightly compiler builds.
const MANIFEST: &str = "fuzz/libfuzzer/Cargo.toml";

/// No reader needs more for what a fuzzer gives it.
const MEMORY_MB: u32 = 2048;

/// A reader that takes longer for a few kilobytes counts something that is not there.
const LONGEST_SECONDS: u32 = 20;

/// Fuzzes one target after the other and counts.
pub fn run_targets(args: &FuzzArgs) -> Result<ExitCode> {
    let manifest = std::fs::read_to_string(tree::root().join(MANIFEST))?;
    let known = names(&manifest);
    for name in &args.targets {
        ensure!(known.contains(&name.as_str()), "no target `{name}`; known: {}", known.join(", "));
    }
    capture(&mut nightly(&["fuzz", "--version"])).context(
        "fuzzing needs a nightly compiler (`rustup toolchain install nightly`) and cargo-fuzz \
         (`cargo install cargo-fuzz`)",
    )?;
    let chosen: Vec<&str> = known
        .into_iter()
        .filter(|name| args.targets.is_empty() || args.targets.iter().any(|wanted| wanted == name))
        .collect();
    let mut summary = Vec::new();
    let mut found = 0;
    for name in chosen {
        let corpus = tree::target().join("fuzz-corpus").join(name);
        std::fs::create_dir_all(&corpus)?;
        let finished = run(&mut command(name, &corpus, args.seconds))?;
        let verdict = if finished.success { "nothing found" } else { "FOUND SOMETHING" };
        found += usize::from(!finished.success);
        let runs = executions(&finished.output).map_or("?".to_owned(), |runs| runs.to_string());
        summary.push(format!("{name}: {runs} executions in {} s, {verdict}", args.seconds));
    }
    println!("\n{}", summary.join("\n"));
    Ok(if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Cargo of the nightly toolchain: the sanitizers are there alone.
fn nightly(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(arguments).current_dir(tree::root());
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    command
}

fn command(name: &str, corpus: &Path, seconds: u32) -> Command {
    let mut command = nightly(&["fuzz", "run", "--fuzz-dir", "fuzz/libfuzzer", "--target-dir"]);
    command.arg(tree::target().join("fuzz")).arg(name).arg(corpus);
    // Where a reader asks for too much and takes no for an answer, that is no fault.
    command.env("ASAN_OPTIONS", "allocator_may_return_null=1");
    // Read after the corpus, and never written.
    command.arg(tree::root().join("fuzz/seeds").join(name)).arg("--");
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-rss_limit_mb={MEMORY_MB}"));
    command.arg(format!("-timeout={LONGEST_SECONDS}"));
    command
}

/// The targets of the manifest.
fn names(manifest: &str) -> Vec<&str> {
    let bins = manifest.split("[[bin]]").skip(1);
    bins.filter_map(|bin| bin.split("name = \"").nth(1)?.split('"').next()).collect()
}

/// What libFuzzer counted.
fn executions(output: &str) -> Option<u64> {
    let done = output.lines().rev().find_map(|line| line.strip_prefix("Done "))?;
    done.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_executions_are_read_from_what_is_there() {
        let manifest = std::fs::read_to_string(tree::root().join(MANIFEST)).unwrap();
        let names = names(&manifest);
        assert!(names.len() >= 10 && names.contains(&"safetensors"), "{names:?}");
        assert_eq!(executions("#12 DONE\nDone 1234 runs in 61 second(s)\n"), Some(1234));
        assert_eq!(executions("SUMMARY: libFuzzer: deadly signal"), None);
    }
}
