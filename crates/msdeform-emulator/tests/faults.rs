//! Every mistake in `test_kernels/faults.cu` is reported with its kind, thread and place.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its shared functions"
)]

mod common;

use std::time::{Duration, Instant};

use common::*;
use msdeform_emulator::{
    Buffer, EmulatedKernel, EmulatorError, Fault, Launch, Order, Specialisation,
};

const SHARED_BYTES: usize = 1024;

fn kernel() -> EmulatedKernel {
    test_kernel("faults", &[])
}

/// A launch that makes the mistake of this name in the kernel's `enum Fault`.
fn launch(fault: &str) -> Launch {
    let source = include_str!("../test_kernels/faults.cu");
    let names = source.split_once("enum Fault {").unwrap().1.split_once('}').unwrap().0;
    let number = names
        .lines()
        .filter_map(|line| line.trim().split_once(',').map(|(name, _)| name))
        .position(|name| name == fault)
        .unwrap_or_else(|| panic!("no fault {fault}"));
    let input = bytes_of_f32(&[1.5; 64]);
    let output = Buffer::output(64 * 4);
    test_launch(1, 64, SHARED_BYTES, input, output, number, SHARED_BYTES as i32)
}

/// The mistake ends the launch with this fault, and the text of the error has all of these parts.
fn expect(mistake: &str, fault: Fault, parts: &[&str]) {
    for order in Order::ALL {
        let error = failure(&kernel(), &Launch { order, ..launch(mistake) });
        assert_eq!(fault_of(&error), Some(fault), "{mistake} in {order:?} order: {error}");
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{mistake} in {order:?} order: no `{part}` in {text}");
        }
    }
}

#[test]
fn without_a_fault_the_kernel_runs() {
    let output = f32_of_bytes(&launch_in_every_order(&kernel(), &launch("NO_FAULT")));
    assert!(output.iter().enumerate().all(|(thread, &found)| found == thread as f32));
}

#[test]
fn barriers_that_threads_never_reach() {
    expect("DIVERGENT_BARRIER", Fault::Divergence, &["__syncthreads", "faults.cu:", "exited"]);
    expect("EXIT_BEFORE_BARRIER", Fault::Divergence, &["17", "__syncthreads"]);
    expect("SPLIT_BARRIER", Fault::Divergence, &["of the same warp"]);
}

#[test]
fn lanes_that_are_missing_from_an_exchange() {
    expect("MISSING_SHUFFLE_LANE", Fault::Divergence, &["shuffle_xor", "0xffffffff", "lane 9"]);
    expect("SHUFFLE_AGAINST_VOTE", Fault::Divergence, &["lane 9", "ballot_lanes", "shuffle_xor"]);
}

#[test]
fn memory_that_does_not_exist() {
    expect(
        "GLOBAL_OUT_OF_BOUNDS",
        Fault::Sanitizer,
        &["heap-buffer-overflow", "thread (63, 0, 0)"],
    );
    expect("GLOBAL_BEFORE_START", Fault::Sanitizer, &["heap-buffer-overflow", "thread (0, 0, 0)"]);
    expect("SHARED_OUT_OF_BOUNDS", Fault::Sanitizer, &["heap-buffer-overflow", "WRITE of size 4"]);
    expect(
        "MISALIGNED_LOAD",
        Fault::Misaligned,
        &["load_readonly", "multiple of 16", "faults.cu:"],
    );
}

#[test]
fn waits_that_never_end() {
    expect(
        "BARRIER_DEADLOCK",
        Fault::Deadlock,
        &["threads 0-31", "barrier 1", "threads 32-63", "barrier 2"],
    );
    expect(
        "MBARRIER_DEADLOCK",
        Fault::Deadlock,
        &["threads 0-63", "mbarrier.try_wait", "parity 0"],
    );
    expect("FLAG_DEADLOCK", Fault::Deadlock, &["threads 0-63", "load_acquire"]);
}

#[test]
fn a_loop_without_end_runs_out_of_time() {
    let kernel = kernel().time_limit(Duration::from_millis(300));
    let started = Instant::now();
    let error = failure(&kernel, &launch("ENDLESS_LOOP"));
    assert_eq!(fault_of(&error), Some(Fault::Timeout), "{error}");
    assert!(error.to_string().contains("block (0, 0, 0) thread (0, 0, 0)"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn instructions_used_against_their_rules() {
    expect("UNFINISHED_COPY", Fault::Misuse, &["still writing"]);
    expect("OVERWRITTEN_MBARRIER", Fault::Misuse, &["shared+512", "overwritten"]);
    expect("TOO_MANY_ARRIVALS", Fault::Misuse, &["mbarrier.arrive", "arrivals"]);
    expect("WRITES_INPUT", Fault::Misuse, &["buffer 0"]);
    expect("GIVES_UP", Fault::Trap, &["trapped"]);
    expect("SHIFT_TOO_FAR", Fault::Sanitizer, &["shift exponent"]);
}

#[test]
fn data_that_is_not_there_yet_is_nan() {
    let output = f32_of_bytes(&launch_in_every_order(&kernel(), &launch("UNWRITTEN_SHARED")));
    assert!(output[5].is_nan() && output.iter().filter(|x| x.is_nan()).count() == 1);
    let output = f32_of_bytes(&launch_in_every_order(&kernel(), &launch("EARLY_READ")));
    assert!(output.iter().all(|x| x.is_nan()));
    // Without the barrier half of the threads read too early; the order decides which half.
    let kernel = kernel();
    for order in Order::ALL {
        let bytes =
            kernel.launch(&Launch { order, ..launch("MISSING_BARRIER") }).unwrap().remove(0);
        assert_eq!(f32_of_bytes(&bytes).iter().filter(|x| x.is_nan()).count(), 32);
    }
}

#[test]
fn requests_that_do_not_fit_the_kernel() {
    let mut short = launch("NO_FAULT");
    short.params.truncate(16);
    let error = failure(&kernel(), &short);
    assert_eq!(fault_of(&error), Some(Fault::Request), "{error}");
    assert!(error.to_string().contains("16 bytes of parameters given, the kernel takes 24"));
}

#[test]
fn a_kernel_that_does_not_compile_shows_the_log() {
    let error = EmulatedKernel::compile(&Specialisation {
        source: std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("test_kernels/matrix_product.cu"),
        headers: kernel_folders(),
        entries: vec!["matrix_product".to_owned()],
        defines: vec!["-DMSDA_TEST_BFLOAT=NO_SUCH_NAME".to_owned()],
    })
    .unwrap_err();
    assert!(matches!(error, EmulatorError::Compile { .. }), "{error}");
    assert!(error.to_string().contains("NO_SUCH_NAME"), "{error}");
}
