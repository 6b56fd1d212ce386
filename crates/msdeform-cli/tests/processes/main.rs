//! The binary among processes: killed at any moment, on full disks, with little memory, with devices and FIFOs for files.
//! Nothing half-written bears a final name, nothing stays behind, and every refusal has its words and its exit code. And
//! what it prints for other programs, shells and `man`, is taken by them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail, and helpers of tests too")]

#[cfg(unix)]
mod kills;
#[cfg(unix)]
mod limits;
#[cfg(unix)]
mod places;
#[cfg(unix)]
mod setting;
#[cfg(unix)]
#[path = "../shared.rs"]
mod shared;
#[cfg(unix)]
mod shells;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let trials: Vec<Trial> = {
        #[cfg(unix)]
        {
            [places::trials(), limits::trials(), kills::trials(), shells::trials()]
                .into_iter()
                .flatten()
                .collect()
        }
        #[cfg(not(unix))]
        {
            Vec::new()
        }
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}
