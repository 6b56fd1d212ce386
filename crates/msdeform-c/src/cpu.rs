//! Plans for the CPU, and threads that several of them share.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, TryLockError};

use msdeform::cpu::is_for_one_thread;
use msdeform::{Access, CpuOptions, CpuPlan, Direction, Error, Isa, LentThreads, Problem, Role};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::border::{answer, growing, hand_out, handle, read, read_or_zero, take_back};
use crate::problem::{constant, msdeform_problem, unknown};
use crate::status::{Failure, entry, msdeform_message, msdeform_status, silently};
use crate::tensors::{HostTensors, msdeform_tensors};

/// An instruction set.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_isa {
    /// The best one that this machine has.
    Best = 0,
    /// Plain code, on every machine.
    Scalar = 1,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2 = 2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512 = 3,
    /// 64-bit ARM.
    Neon = 4,
}

/// Threads that several plans share: calls wait for each other, and idle plans keep no threads. Any number of threads may
/// use one at the same time. They end when it and the plans that use it are destroyed. They do not survive fork().
#[derive(Debug)]
pub struct msdeform_workers {
    pool: Arc<ThreadPool>,
}

/// How a CPU plan runs. All zero, or null instead of it: one thread for each core, the best instructions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_cpu_options {
    /// sizeof(msdeform_cpu_options).
    pub struct_size: usize,
    /// Null: the plan has threads of its own. Otherwise those that do its work; `threads` is 0 then.
    pub workers: *const msdeform_workers,
    /// Threads that share the work of a call. 0: as many as there are cores. 1: the calling one, and none is started.
    pub threads: i64,
    /// One of `msdeform_isa`.
    pub isa: i32,
    /// Zero.
    pub reserved: i32,
}

/// What there is to know about a CPU plan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_cpu_plan_info {
    /// sizeof(msdeform_cpu_plan_info).
    pub struct_size: usize,
    /// Scratch memory that it holds now; it grows with the first calls and then stays.
    pub workspace_bytes: usize,
    /// Threads that share the work of a call.
    pub threads: i64,
    /// One of `msdeform_isa`; for f64, which the reference computes, `MSDEFORM_ISA_SCALAR`.
    pub isa: i32,
    /// Zero.
    pub reserved: i32,
}

/// Threads of the caller that a call runs on, such as the pool of the runtime that calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_threads {
    /// sizeof(msdeform_threads).
    pub struct_size: usize,
    /// Threads that may share the work, from 1. More than there are cost next to nothing.
    pub count: i64,
    /// Passed to `run`.
    pub context: *mut c_void,
    /// Calls `work(job)` up to `count` times, on any threads at the same time, and returns when all of these calls have. The
    /// calling thread takes part by itself. It must not let an exception out.
    pub run: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            count: i64,
            work: unsafe extern "C" fn(job: *mut c_void),
            job: *mut c_void,
        ),
    >,
}

growing! {
    msdeform_threads 3 * size_of::<usize>() + 8;
    msdeform_cpu_options 2 * size_of::<usize>() + 16;
    msdeform_cpu_plan_info 2 * size_of::<usize>() + 16;
}

/// Everything that calls of one problem on the CPU share: tables, threads, scratch memory. One call at a time; a
/// second one meanwhile is refused with `MSDEFORM_STATUS_BUSY`. It may be used by another thread for every call.
pub struct msdeform_cpu_plan {
    problem: Problem,
    /// What does the work, if it is not the plan's own threads or the calling one.
    workers: Option<Arc<ThreadPool>>,
    computes: Mutex<CpuPlan>,
}

/// Starts threads for several plans; 0 means one for each core. They are ended with `msdeform_workers_destroy`.
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_workers_create(
    threads: i64,
    workers: *mut *mut msdeform_workers,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        // SAFETY: the caller promises that pointers lead to what their types say.
        unsafe {
            hand_out(workers, || {
                let pool = start_pool(thread_count(threads)?)?;
                Ok(msdeform_workers { pool: Arc::new(pool) })
            })
        }
    })
}

/// Releases workers. Plans that use them keep them. Null is allowed.
///
/// Any thread, once, after the last use in any other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_workers_destroy(workers: *mut msdeform_workers) {
    // SAFETY: the caller gives the handle up.
    silently(|| unsafe { take_back(workers) });
}

/// Sets `available` to 1 if this machine has an instruction set (one of `msdeform_isa`), and to 0 if not.
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_isa_available(
    isa: i32,
    available: *mut i32,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        let to = crate::border::checked("available", available)?;
        let found = self::isa(isa)?.is_none_or(Isa::is_available);
        // SAFETY: not null and aligned; the caller promises an int.
        unsafe { to.write(i32::from(found)) };
        Ok(())
    })
}

/// Prepares calls of a problem on the CPU. The plan is destroyed with `msdeform_cpu_plan_destroy`; neither problem
/// nor options are needed meanwhile.
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cpu_plan_create(
    problem: *const msdeform_problem,
    options: *const msdeform_cpu_options,
    plan: *mut *mut msdeform_cpu_plan,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        // SAFETY: the caller promises that pointers lead to what their types say, and live handles.
        unsafe {
            hand_out(plan, || {
                let problem = handle("problem", problem)?;
                let options = read_or_zero(options)?;
                let workers = match options.workers.is_null() {
                    true => None,
                    false => Some(Arc::clone(&handle("workers", options.workers)?.pool)),
                };
                prepare(&problem.problem, workers, &options)
            })
        }
    })
}

/// Destroys a plan and its threads. Null is allowed.
///
/// Any thread, once, after the last use in any other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cpu_plan_destroy(plan: *mut msdeform_cpu_plan) {
    // SAFETY: the caller gives the handle up.
    silently(|| unsafe { take_back(plan) });
}

/// What there is to know about a plan. `info->struct_size` must be set.
///
/// Any thread, one at a time with the calls of the plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cpu_plan_get_info(
    plan: *const msdeform_cpu_plan,
    info: *mut msdeform_cpu_plan_info,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        // SAFETY: the caller promises a live handle.
        let plan = unsafe { handle("plan", plan)? };
        let found = plan.with(|computes| {
            let threads = i64::try_from(computes.threads()).unwrap_or(i64::MAX);
            let isa = code_of(computes.isa()) as i32;
            Ok(msdeform_cpu_plan_info {
                struct_size: 0,
                workspace_bytes: computes.workspace_bytes(),
                threads,
                isa,
                reserved: 0,
            })
        })?;
        // SAFETY: the caller promises a struct of the size that it says.
        unsafe { answer(info, &found) }
    })
}

/// Computes the output, of locations and weights or from offsets as the problem says, and returns when it is there.
///
/// Any thread, one call of a plan at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cpu_forward(
    plan: *const msdeform_cpu_plan,
    tensors: *const msdeform_tensors,
    message: *mut msdeform_message,
) -> msdeform_status {
    // SAFETY: the caller promises that pointers lead to what their types say, and tensors of the bytes that they say.
    entry(message, || unsafe {
        handle("plan", plan)?.compute(Direction::Forward, read(tensors)?, None)
    })
}

/// As `msdeform_cpu_forward`, on threads of the caller: none of the plan's own and none of its workers take part. Small calls
/// stay on the calling thread. `threads->struct_size` must be set.
///
/// Any thread, one call of a plan at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cpu_forward_on(
    plan: *const msdeform_cpu_plan,
    threads: *const msdeform_threads,
    tensors: *const msdeform_tensors,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        // SAFETY: the caller promises that pointers lead to what their types say, and tensors of the bytes that they say.
        unsafe {
            let plan = handle("plan", plan)?;
            let threads = CallersThreads::new(read(threads)?, &plan.problem)?;
            plan.compute(Direction::Forward, read(tensors)?, Some(&threads))
        }
    })
}

/// Computes the gradients that are not null, and returns when they are written. They are bitwise reproducible for any number
/// of threads.
///
/// Any thread, one call of a plan at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cpu_backward(
    plan: *const msdeform_cpu_plan,
    tensors: *const msdeform_tensors,
    message: *mut msdeform_message,
) -> msdeform_status {
    // SAFETY: the caller promises that pointers lead to what their types say, and tensors of the bytes that they say.
    entry(message, || unsafe {
        handle("plan", plan)?.compute(Direction::Backward, read(tensors)?, None)
    })
}

fn prepare(
    problem: &Problem,
    workers: Option<Arc<ThreadPool>>,
    options: &msdeform_cpu_options,
) -> Result<msdeform_cpu_plan, Failure> {
    if options.reserved != 0 {
        return Err(unknown("reserved", options.reserved, "0"));
    }
    let isa = isa(options.isa)?;
    let threads = match &workers {
        Some(_) if options.threads != 0 => {
            return Err(Failure::Options("`threads` and `workers` are both set; set one of them"));
        }
        Some(_) => None,
        None => Some(thread_count(options.threads)?),
    };
    let prepare = || CpuPlan::new(problem, &CpuOptions { threads, isa });
    // Inside of the pool, so that the plan takes it for its own.
    let made = workers.as_ref().map_or_else(prepare, |pool| pool.install(prepare))?;
    Ok(msdeform_cpu_plan { problem: problem.clone(), workers, computes: Mutex::new(made) })
}

impl msdeform_cpu_plan {
    /// # Safety
    /// Tensors lead to as many bytes as they say; those that are read are not written to meanwhile, and nothing else touches
    /// those that are written.
    unsafe fn compute(
        &self,
        direction: Direction,
        tensors: msdeform_tensors,
        lent: Option<&dyn LentThreads>,
    ) -> Result<(), Failure> {
        let problem = &self.problem;
        let tensors = HostTensors::new(problem, direction, tensors)?;
        let (mut read, mut written) = (Vec::new(), Vec::new());
        for (role, access) in problem.operator().tensors(direction) {
            // SAFETY: passed on from the caller; `HostTensors` refused what is written over something else.
            unsafe {
                match access {
                    Access::Read => read.push((role, tensors.read(role)?)),
                    Access::Write if role == Role::Output || tensors.has(role) => {
                        written.push((role, tensors.write(role)?));
                    }
                    Access::Write => {}
                }
            }
        }
        self.with(|computes| match (lent, &self.workers) {
            (Some(threads), _) => Ok(computes.run_on(threads, read, written)?),
            (None, Some(pool)) => Ok(pool.install(|| computes.run(read, written))?),
            (None, None) => Ok(computes.run(read, written)?),
        })
    }

    /// Takes the plan for one call, or refuses if another call has it.
    fn with<T>(&self, work: impl FnOnce(&mut CpuPlan) -> Result<T, Failure>) -> Result<T, Failure> {
        match self.computes.try_lock() {
            Ok(mut computes) => work(&mut computes),
            Err(TryLockError::WouldBlock) => Err(Failure::Busy),
            Err(TryLockError::Poisoned(_)) => Err(Failure::Poisoned),
        }
    }
}

/// The threads of a caller, during one call.
struct CallersThreads {
    threads: msdeform_threads,
    count: usize,
}

unsafe extern "C" fn do_job(job: *mut c_void) {
    // SAFETY: `CallersThreads::run` passes the work, which lives until the caller's threads are done. It does not panic.
    (unsafe { *job.cast::<&(dyn Fn() + Sync)>() })();
}

impl CallersThreads {
    fn new(threads: msdeform_threads, problem: &Problem) -> Result<Self, Failure> {
        if threads.run.is_none() {
            return Err(Failure::NullPointer("run"));
        }
        if threads.count < 1 {
            return Err(Failure::ThreadCount(threads.count));
        }
        let count = usize::try_from(threads.count).unwrap_or(usize::MAX);
        let count =
            if is_for_one_thread(problem) { 1 } else { count.min(msdeform::cpu::max_threads()) };
        Ok(Self { threads, count })
    }
}

impl LentThreads for CallersThreads {
    fn workers(&self) -> usize {
        self.count
    }

    fn run(&self, mut work: &(dyn Fn() + Sync)) {
        if let (2.., Some(run)) = (self.count, self.threads.run) {
            let job = (&raw mut work).cast();
            let others = i64::try_from(self.count).unwrap_or(i64::MAX);
            // SAFETY: the caller promises a function that returns when all its calls have; the work may be shared between threads.
            unsafe { run(self.threads.context, others, do_job, job) };
        }
        // Returns at once unless there is work left.
        work();
    }
}

/// How many threads a number of the caller means.
fn thread_count(wanted: i64) -> Result<usize, Failure> {
    let refuse = |reason: &str| Error::Threads { threads: 0, reason: reason.into() };
    match usize::try_from(wanted) {
        Ok(0) => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
        Ok(threads) => Ok(threads),
        Err(_) => Err(refuse("`threads` is negative").into()),
    }
}

fn start_pool(threads: usize) -> Result<ThreadPool, Error> {
    let refuse = |reason: String| Error::Threads { threads, reason };
    let most = msdeform::cpu::max_threads();
    if threads > most {
        return Err(refuse(format!("at most {most} are started")));
    }
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("msdeform-{index}"))
        .build()
        .map_err(|error| refuse(error.to_string()))
}

/// `None` is the best one.
fn isa(code: i32) -> Result<Option<Isa>, Failure> {
    let known = "MSDEFORM_ISA_BEST, _SCALAR, _AVX2, _AVX512, _NEON";
    let named = Isa::ALL.into_iter().map(|isa| (code_of(isa) as i32, Some(isa)));
    constant("isa", code, known, named.chain([(msdeform_isa::Best as i32, None)]))
}

const fn code_of(isa: Isa) -> msdeform_isa {
    match isa {
        Isa::Scalar => msdeform_isa::Scalar,
        Isa::Avx2 => msdeform_isa::Avx2,
        Isa::Avx512 => msdeform_isa::Avx512,
        Isa::Neon => msdeform_isa::Neon,
    }
}
