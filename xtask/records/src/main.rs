//! Developer commands that read or write records: `cargo xtask` builds this program and passes them on.
//!
//! A program of its own because they need the crates of the laboratory, which `cargo xtask --help` must not wait for.

#![allow(
    clippy::doc_markdown,
    reason = "comments on commands are help texts, which know no Markdown"
)]

mod onnx_record;
#[path = "../../src/pack.rs"]
mod pack;
mod python_record;
mod quote;
mod readme;
mod torch;

// Shared with `cargo xtask`, which uses all of them.
#[path = "../../src/process.rs"]
#[allow(dead_code, reason = "shared")]
mod process;
#[path = "../../src/setup.rs"]
#[allow(dead_code, reason = "shared")]
mod setup;
#[path = "../../src/steps.rs"]
#[allow(dead_code, reason = "shared")]
mod steps;
#[path = "../../src/tree.rs"]
#[allow(dead_code, reason = "shared")]
mod tree;
#[path = "../../src/uv.rs"]
#[allow(dead_code, reason = "shared")]
mod uv;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Write the tables of README.md and of the Python package's from the committed records
    Readme(readme::ReadmeArgs),
    /// Make runs on one device the record that documents quote, and write their tables
    Quote(quote::QuoteArgs),
    /// Compile the kernel pack, and build the wheel that brings it, under target/kernels
    Pack(pack::PackArgs),
    /// Time PyTorch's grid_sample path and ours in one run and record both
    CompareTorch(torch::CompareArgs),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Readme(args) => readme::run(&args),
        Command::Quote(args) => quote::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::CompareTorch(args) => torch::run(&args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
