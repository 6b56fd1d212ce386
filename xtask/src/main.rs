//! Developer commands: `cargo xtask <command>`.

#![allow(
    clippy::doc_markdown,
    reason = "comments on commands are help texts, which know no Markdown"
)]

mod c;
mod checks;
mod environments;
mod openvino;
mod process;
mod python;
mod records;
mod setup;
mod ship;
mod slow;
mod steps;
mod test;
mod tree;
mod uv;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Developer commands of msdeform
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Install what is missing, then run every lint, test and check of the tree, as CI does
    Test(test::TestArgs),
    /// Format everything: Rust, Python, CUDA and C++
    Format,
    /// Write the tables of README.md and of the Python package's from the committed records
    #[command(disable_help_flag = true)]
    Readme(records::Passed),
    /// Make runs on one device the record that documents quote, and write their tables
    #[command(disable_help_flag = true)]
    Quote(records::Passed),
    /// Write crates/msdeform-cuda/resources.csv again after an intended change of a kernel
    Resources,
    /// Show or renew what a GPU has verified: `cargo xtask ledger renew`
    #[command(disable_help_flag = true)]
    Ledger(records::Passed),
    /// Give random bytes to everything that reads files; needs a nightly compiler and cargo-fuzz
    Fuzz(slow::FuzzArgs),
    /// Build the site of the documents under target/site
    Docs,
    /// Build the C library for release and install it with its header and its pkg-config file
    C(c::CArgs),
    /// Lint, test and document the crate for candle, a workspace of its own
    Candle,
    /// Build the Python package under target/wheels, for this machine or for other platforms
    Wheel(ship::wheel::WheelArgs),
    /// Build the Python package and test it with given versions of packages such as torch
    Python(python::PythonArgs),
    /// Compile the kernel pack and build its wheel, under target/kernels
    #[command(disable_help_flag = true)]
    Pack(records::Passed),
    /// Run what was built for a platform: tests of the library and of the wheel, under qemu or Wine where needed
    Try(ship::platforms::TryArgs),
    /// Package the crates for crates.io and build each from its own tarball
    Crates,
    /// Compare the public interfaces of the libraries with the lists in the tree
    Api {
        /// Write the lists instead, after an intended change
        #[arg(long)]
        bless: bool,
    },
    /// Make a release: versions, changelog, wheels, crates, checksums; prints what a person has to do
    Release(ship::release::ReleaseArgs),
    /// Run the tests without foreign code under Miri
    Miri,
    /// Run tests in which threads share something under the thread sanitizer
    Tsan,
    /// Test all interleavings of what threads share without a lock
    Loom,
    /// Check licences, duplicates, sources and advisories of the dependencies
    Deny {
        /// Leave out the advisories, which come from the network
        #[arg(long)]
        offline: bool,
    },
    /// Export models of many packages, and print what the command finds in them; takes gigabytes and an hour
    Exports,
    /// Time PyTorch's grid_sample path and ours in one run and record both
    #[command(disable_help_flag = true)]
    CompareTorch(records::Passed),
}

fn main() -> ExitCode {
    run(&Command::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Test(args) => return test::run_all(args),
        Command::Readme(args) => return records::run("readme", args),
        Command::Quote(args) => return records::run("quote", args),
        Command::Pack(args) => return records::run("pack", args),
        Command::CompareTorch(args) => return records::run("compare-torch", args),
        Command::Ledger(args) => return records::ledger(args),
        Command::Fuzz(args) => return slow::fuzz(args),
        Command::Candle => return Ok(slow::candle()),
        Command::Exports => return slow::exports(),
        Command::Wheel(args) => return ship::wheel::run(args),
        Command::Python(args) => return python::test_with(args),
        Command::Try(args) => return ship::platforms::try_all(args),
        Command::Crates => return ship::release::crates(),
        Command::Release(args) => return ship::release::run(args),
        Command::Miri => return Ok(steps::all(slow::MIRI)),
        Command::Tsan => return Ok(steps::all(slow::TSAN)),
        Command::Loom => return Ok(steps::all(slow::LOOM)),
        Command::Format => test::format()?,
        Command::Resources => test::bless_resources()?,
        Command::Docs => println!("{}", checks::site()?.join("index.html").display()),
        Command::C(args) => c::run(args)?,
        Command::Api { bless } => ship::api::run_command(*bless)?,
        Command::Deny { offline } => slow::deny(*offline)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_developer_command_in_the_documents_and_workflows_is_one() {
        let mut found = 0;
        for file in tree::files(&["*.md", "*.yml"]).unwrap() {
            let is_page = file.extension().is_some_and(|extension| extension == "md");
            let before = if is_page { "" } else { "- run: " };
            let text = std::fs::read_to_string(tree::root().join(&file)).unwrap();
            let typed = text.lines().filter_map(|line| line.trim_start().strip_prefix(before));
            let typed = typed.filter(|line| line.starts_with("cargo xtask "));
            for line in typed.filter_map(|line| line.split(['#', '&']).next()) {
                let words = line.split_whitespace().skip(1);
                let parsed = Command::try_parse_from(words);
                assert!(parsed.is_ok(), "{}: `{line}`: {}", file.display(), parsed.err().unwrap());
                found += 1;
            }
        }
        assert!(found >= 10, "only {found} commands");
    }
}
