//! Developer commands: `cargo xtask <command>`.

#![allow(
    clippy::doc_markdown,
    reason = "comments on commands are help texts, which know no Markdown"
)]

mod browser;
mod c;
mod candle;
mod checks;
mod format;
mod fuzz;
mod ledger;
mod process;
mod python;
mod records;
mod setup;
mod ship;
mod site;
mod soundness;
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
    /// Set up what is missing, then run every lint, test and check of the tree; CI runs exactly this
    Test(test::TestArgs),
    /// Format everything: Rust, Python, CUDA and C++
    Format,
    /// Write the tables of README.md and of the Python package's from the committed records
    #[command(disable_help_flag = true)]
    Readme(records::Passed),
    /// Make runs on one device the record that documents quote, and write their tables
    #[command(disable_help_flag = true)]
    Quote(records::Passed),
    /// Write crates/msdeform-cuda/resources.csv anew, after a kernel changed on purpose
    Resources,
    /// Show or renew what a GPU has verified: `cargo xtask ledger renew`
    Ledger(ledger::LedgerArgs),
    /// Give everything that reads files bytes of all kinds; needs a nightly compiler and cargo-fuzz
    Fuzz(fuzz::FuzzArgs),
    /// Build the site of the documents under target/site
    Docs,
    /// Build the C library for release and install it with its header and its pkg-config file
    C(c::CArgs),
    /// Lint, test and document the crate for candle, which is a workspace of its own
    Candle,
    /// Build the Python package under target/wheels, for this machine or for other platforms
    Wheel(ship::wheel::WheelArgs),
    /// Build the Python package and test it with given versions of PyTorch and others
    Python(python::PythonArgs),
    /// Compile the kernel pack, and build the wheel that brings it, under target/kernels
    #[command(disable_help_flag = true)]
    Pack(records::Passed),
    /// Run what was built for a platform: the library's tests and the wheel's, under qemu or Wine where needed
    Try(ship::trial::TryArgs),
    /// Package the crates for crates.io and build each from its own tarball
    Crates,
    /// Compare the public interfaces of the libraries with the lists in the tree
    Api(ship::api::ApiArgs),
    /// Make a release: versions, changelog, wheels, crates, checksums, and what is left for a person to do
    Release(ship::release::ReleaseArgs),
    /// Run the tests of what has no foreign code in it under Miri
    Miri,
    /// Run the tests in which threads share something under the thread sanitizer
    Tsan,
    /// Go through the interleavings of what is shared without a lock
    Loom,
    /// Check licences, duplicates, sources and advisories of what the crates are made of
    Deny {
        /// Leave out the advisories, which come from the network
        #[arg(long)]
        offline: bool,
    },
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
        Command::Test(args) => test::run_all(args),
        Command::Format => format::apply(),
        Command::Resources => test::bless_resources(),
        Command::Readme(args) => records::run("readme", args),
        Command::Quote(args) => records::run("quote", args),
        Command::Ledger(args) => ledger::run(args),
        Command::Fuzz(args) => fuzz::run_targets(args),
        Command::Docs => site::run(),
        Command::C(args) => c::run(args),
        Command::Candle => candle::test(),
        Command::Wheel(args) => ship::wheel::run(args),
        Command::Python(args) => python::test_with(args),
        Command::Pack(args) => records::run("pack", args),
        Command::Try(args) => ship::trial::run(args),
        Command::Crates => ship::crates::run(),
        Command::Api(args) => ship::api::run_command(args),
        Command::Release(args) => ship::release::run(args),
        Command::Miri => soundness::miri(),
        Command::Tsan => soundness::tsan(),
        Command::Loom => soundness::loom(),
        Command::Deny { offline } => soundness::deny(*offline),
        Command::CompareTorch(args) => records::run("compare-torch", args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_developer_command_in_the_documents_and_workflows_is_one() {
        let mut found = 0;
        for file in tree::files().unwrap() {
            let before = match file.extension().and_then(|extension| extension.to_str()) {
                Some("md") => "",
                Some("yml") => "- run: ",
                _ => continue,
            };
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
