//! The `msdeform` command line: glue between arguments, the laboratory and the terminal.
//!
//! A library so that its binary is not all that can reach it: the Python package has the same command, and what reads files
//! takes them as bytes too, which is what the fuzz targets give it. Nothing here is an interface for others.

mod args;
mod commands;
mod exit;
mod output;
mod run;

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;
use msdeform_lab::record::Build;

use args::Cli;
use commands::{Command, main_job};

pub use run::from_bytes;

/// The sources that this program, or the Python package, was built from.
pub const BUILD: Build =
    Build { commit: env!("MSDEFORM_BUILD_COMMIT"), dirty: is_true(env!("MSDEFORM_BUILD_DIRTY")) };

const fn is_true(text: &str) -> bool {
    matches!(text.as_bytes(), b"true")
}

/// Runs a command line, whose first word is the program's name, and returns the exit code.
#[must_use]
pub fn command_line(words: impl IntoIterator<Item = OsString>) -> u8 {
    BUILD.announce();
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        // clap reports help and versions as errors too. A closed pipe is not an error of its own.
        Err(error) => {
            drop(error.print());
            return u8::try_from(error.exit_code()).unwrap_or(u8::MAX);
        }
    };
    let done = cli.command.as_ref().map_or_else(|| main_job::run(&cli.main), Command::run);
    let code = match done {
        Ok(()) => 0,
        Err(error) => exit::report(&error),
    };
    // A library's caller ends without Rust's end of `main`.
    drop(std::io::stdout().flush());
    code
}
