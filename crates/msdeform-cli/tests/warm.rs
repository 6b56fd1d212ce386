//! `msdeform warm`, as scripts use it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use msdeform_cuda::decode_entry;
use msdeform_cuda::nvrtc::Nvrtc;
use serde_json::Value;

use crate::shared::{expect, folder, printed, printed_json};

/// A few kernels: the forward pass of a small model, of both operators.
const FEW: &str = "--arch sm_90 --workload edge_one_point --dtype f32 --direction forward";

fn warm(cache: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_msdeform"));
    command.arg("warm").args(arguments.split_whitespace()).env("MSDEFORM_CACHE_DIR", cache);
    command
}

#[test]
fn a_stopped_run_leaves_whole_kernels_and_continues() {
    if Nvrtc::for_tests().is_none() {
        return;
    }
    let folder = folder();
    let cache = folder.path();
    let whole = || {
        let files = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path());
        let kernels = files.filter(|path| path.extension().is_some_and(|name| name == "cubin"));
        kernels.map(|path| fs::read(path).unwrap()).collect::<Vec<_>>()
    };
    let mut stopped = warm(cache, FEW);
    stopped.args(["--threads", "1"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut stopped = stopped.spawn().unwrap();
    let start = Instant::now();
    while whole().is_empty() && start.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(5));
    }
    stopped.kill().unwrap();
    stopped.wait().unwrap();
    let kept = whole();
    assert!(!kept.is_empty() && kept.iter().all(|bytes| decode_entry(bytes).is_some()));

    let output = expect(warm(cache, FEW).arg("--json"), 0, &[]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let second: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(second["found"].as_u64().unwrap() >= kept.len() as u64, "{second}");
    assert_eq!(second["failed"].as_array().unwrap().len(), 0);
    let kernels = second["kernels"].as_u64().unwrap();
    let made = second["found"].as_u64().unwrap() + second["compiled"].as_u64().unwrap();
    assert_eq!(made, kernels, "{second}");
    assert_eq!(second["arch"], "sm_90a");
    assert_eq!(whole().len() as u64, kernels);
    // Nothing but kernels is left: what the one that was stopped had begun is gone.
    assert_eq!(fs::read_dir(cache).unwrap().count() as u64, kernels);

    // Only the kernels of the fused operator.
    let only = printed_json(warm(cache, FEW).args(["--from-offsets", "--json"]));
    assert_eq!((&only["compiled"], &only["found"]), (&0.into(), &only["kernels"]));
    assert!((1..kernels).contains(&only["kernels"].as_u64().unwrap()), "{only}");

    let compiled = format!("0 compiled by NVRTC {}", second["nvrtc"].as_str().unwrap());
    printed(warm(cache, FEW), &[&compiled, &format!("{kernels} found, 0 failed")]);
}
