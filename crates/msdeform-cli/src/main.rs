//! The `msdeform` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(msdeform_cli::command_line(std::env::args_os()))
}
