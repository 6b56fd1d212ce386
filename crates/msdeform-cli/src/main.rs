//! The `msdeform` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    msdeform_cli::command_line()
}
