//! Developer commands that read or write records: `cargo xtask` builds this program and passes them on.
//!
//! A program of its own because they need the crates of the laboratory, which `cargo xtask --help` must not wait for.

#![allow(
    clippy::doc_markdown,
    reason = "comments on commands are help texts, which know no Markdown"
)]

#[path = "../../src/pack.rs"]
mod pack;
mod quote;
mod readme;
mod torch;

#[path = "../../src"]
#[allow(dead_code, reason = "shared with `cargo xtask`, which uses all of them")]
mod shared {
    pub mod environments;
    pub mod process;
    pub mod setup;
    pub mod tree;
    pub mod uv;
}

use shared::{environments, process, setup, tree, uv};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Write the tables of README.md and of the Python package's from the committed records
    Readme {
        /// Change nothing; fail if the tables are not what the records say
        #[arg(long)]
        check: bool,
    },
    /// Make runs on one device the record that documents quote, and write their tables
    Quote {
        /// Folders that `msdeform bench --record`, the main job or `benches/record.py` wrote, of one device; of the latter the first
        /// is the one for the README
        #[arg(required = true, value_name = "RUN")]
        runs: Vec<PathBuf>,
    },
    /// Compile the kernel pack, and build the wheel that brings it, under target/kernels
    Pack(pack::PackArgs),
    /// Time PyTorch's grid_sample path and ours in one run and record both
    CompareTorch(torch::CompareArgs),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Readme { check: true } => readme::check(),
        Command::Readme { check: false } => readme::write(),
        Command::Quote { runs } => quote::run(&runs),
        Command::Pack(args) => pack::run(&args),
        Command::CompareTorch(args) => torch::run(&args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
