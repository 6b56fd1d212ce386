//! A kernel that faults takes its context with it. Each case runs in a process of its own: this binary
//! again, which then only provokes the fault and prints what it is told.

use std::process::Command;

use libtest_mimic::{Failed, Trial};
use msdeform::{DType, Direction, Problem, Role};
use msdeform_cuda::{
    DeviceBuffer, Engine, Error, Plan, PlanOptions, PointerChecks, Result, Stream,
};

use crate::resident::Resident;
use crate::{Outcome, engine_and_stream, ensure};

/// Makes a process provoke a fault instead of running tests.
const CHILD: &str = "MSDEFORM_TEST_LOSE_CONTEXT";
/// The variable by which CUDA waits for every launch.
const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";

/// Queries of a launch that is waited for, of one that is not, of the one that faults, and of one after it.
const DONE: usize = 20;
const UNDER_WAY: usize = 21;
const FAULTING: usize = 22;
const LATER: usize = 23;

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("fault::a_lost_context_lists_what_may_have_done_it", several),
        Trial::test("fault::a_launch_that_is_waited_for_is_named_exactly", exact),
    ]
}

/// The exit code of a child; `None` in the process that runs the tests.
pub fn run_as_child() -> Option<i32> {
    std::env::var_os(CHILD)?;
    match lose_context() {
        Ok(()) => Some(0),
        Err(failed) => {
            eprintln!("{failed:?}");
            Some(1)
        }
    }
}

/// Where nothing is: the first page of the second gigabyte, aligned for everything.
const NOWHERE: u64 = 1 << 30;

struct Call {
    plan: Plan,
    tensors: Resident<f32>,
}

impl Call {
    fn new(engine: &Engine, stream: &Stream, queries: usize) -> std::result::Result<Self, Failed> {
        let builder = Problem::builder().heads(2).channels(32).queries(queries).points(4);
        let problem = builder.levels([(8, 8)]).dtype(DType::F32).build()?;
        let options = PlanOptions { pointer_checks: PointerChecks::Never, ..Default::default() };
        let plan = Plan::new(engine, &problem, &options)?;
        Ok(Self { plan, tensors: Resident::new(stream, &problem, Direction::Forward, 1)? })
    }

    fn launch(&self, stream: &Stream, output: Option<u64>) -> Result<()> {
        let pointers = self.tensors.pointers();
        let output = output.unwrap_or(pointers.get(Role::Output));
        // SAFETY: nothing about it where the output leads nowhere; that is what this process is for.
        unsafe { self.plan.launch(stream, &pointers.with(Role::Output, output)) }
    }
}

fn lose_context() -> Outcome {
    let (engine, stream) = engine_and_stream()?;
    let calls = [DONE, UNDER_WAY, FAULTING, LATER];
    let [done, under_way, faulting, later] =
        calls.map(|queries| Call::new(&engine, &stream, queries));
    let (done, under_way, faulting, later) = (done?, under_way?, faulting?, later?);
    done.launch(&stream, None)?;
    stream.synchronize()?;
    under_way.launch(&stream, None)?;
    let faulted = faulting.launch(&stream, Some(NOWHERE)).and_then(|()| stream.synchronize());
    report("first", faulted)?;
    report("later", later.launch(&stream, None))?;
    report("memory", DeviceBuffer::<f32>::filled(&stream, 1 << 20, 0).map(drop))?;
    // Other users of the device in this process get an error, too. Dropping these values must not hang or abort.
    drop((done, under_way, faulting, later, stream));
    Ok(())
}

fn report(call: &str, result: Result<()>) -> Outcome {
    match result {
        Err(Error::ContextLost(lost)) => {
            println!("{call}: {lost}");
            Ok(())
        }
        other => Err(format!("{call}: expected a lost context, got {other:?}").into()),
    }
}

/// What the child was told, by call.
fn child(blocking: bool) -> std::result::Result<[String; 3], Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(CHILD, "1").env_remove(BLOCKING);
    if blocking {
        command.env(BLOCKING, "1");
    }
    let output = command.output()?;
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}\n{words}\n{errors}", output.status);
    let line = |call: &str| {
        let found = words.lines().find_map(|line| line.strip_prefix(call)?.strip_prefix(": "));
        found.map(str::to_owned).ok_or_else(|| Failed::from(format!("no `{call}` in {words}")))
    };
    Ok([line("first")?, line("later")?, line("memory")?])
}

fn names(words: &str, queries: usize) -> bool {
    words.contains(&format!("Lq={queries} "))
}

fn several() -> Outcome {
    for words in child(false)? {
        for expected in [
            "ILLEGAL_ADDRESS",
            "newest first",
            "another library",
            "CUDA_LAUNCH_BLOCKING=1",
            "this process must be restarted",
        ] {
            ensure!(words.contains(expected), "`{expected}` is not in: {words}");
        }
        ensure!(names(&words, FAULTING) && names(&words, UNDER_WAY), "{words}");
        ensure!(!names(&words, DONE), "it was waited for: {words}");
        ensure!(!names(&words, LATER), "it was never launched: {words}");
    }
    Ok(())
}

fn exact() -> Outcome {
    for words in child(true)? {
        ensure!(words.contains("this process must be restarted"), "{words}");
        ensure!(names(&words, FAULTING), "{words}");
        for other in [DONE, UNDER_WAY, LATER] {
            ensure!(!names(&words, other), "{other} queries are not to blame: {words}");
        }
    }
    Ok(())
}
