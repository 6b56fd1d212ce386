//! The operators in sessions of ONNX Runtime, and the service of the example. `MSDEFORM_ONNXRUNTIME` is the path of the
//! runtime's library (`cargo xtask test` sets it); without it each test is listed as ignored.

#![allow(clippy::unwrap_used, reason = "a test binary; its harness catches panics")]

mod model;
mod operators;
#[path = "../../examples/serve/server.rs"]
mod server;
mod service;

use std::sync::OnceLock;

use libtest_mimic::{Arguments, Failed, Trial};
use ort::environment::Environment;

static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();

/// The runtime that all tests share. No test runs without it.
fn environment() -> &'static Environment {
    ENVIRONMENT.get().unwrap()
}

/// What a test body returns: any error fails it.
type Outcome = Result<(), Failed>;

fn main() {
    let mut arguments = Arguments::from_args();
    // ONNX Runtime notes the domains of all sessions in one map: of two that come with a new one at the same time, it refuses
    // one.
    arguments.test_threads = Some(1);
    let runtime = std::env::var_os("MSDEFORM_ONNXRUNTIME");
    match &runtime {
        // What was said to be there must be.
        Some(path) => {
            let environment = ort::init_from(path).unwrap().build().unwrap();
            assert!(ENVIRONMENT.set(environment).is_ok(), "it is made once");
        }
        None => eprintln!(
            "tests in ONNX Runtime are ignored: MSDEFORM_ONNXRUNTIME does not say where it is"
        ),
    }
    let trials = operators::trials().into_iter().chain(service::trials());
    let trials: Vec<Trial> =
        trials.map(|trial| trial.with_ignored_flag(runtime.is_none())).collect();
    libtest_mimic::run(&arguments, trials).exit();
}
