//! One thread really is one. Alone in its binary, so that no other test starts threads meanwhile.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

mod cpu_support;

use cpu_support::{Call, plan};
use msdeform::Problem;

/// Threads of this process; `None` where the system does not tell.
fn threads_running() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no list of a process's threads")]
#[cfg_attr(windows, ignore = "Windows has no such list, and Wine's has threads of its own in it")]
fn a_plan_of_one_thread_starts_none() {
    let Some(before) = threads_running() else {
        println!("skipped: this system does not list a process's threads");
        return;
    };
    let problem =
        Problem::builder().heads(4).channels(32).queries(100).points(4).levels([(9, 9), (5, 5)]);
    let call = Call::random(problem.build().unwrap(), 1);
    let mut alone = plan(&call.problem, 1);
    call.check(&call.run(&mut alone)).unwrap();
    assert_eq!(threads_running(), Some(before));

    // The count does see threads: three of them are three more, and go with their plan.
    let mut three = plan(&call.problem, 3);
    call.check(&call.run(&mut three)).unwrap();
    assert_eq!(threads_running(), Some(before + 3));
}
