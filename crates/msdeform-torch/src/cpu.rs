//! The CPU: plans and worker threads of the calling thread.
//!
//! Both belong to the thread that calls, as OpenMP teams do: nothing is locked, and a process that forked
//! (a data loader's worker) finds its own thread's state whole.

use std::cell::RefCell;

use msdeform::cpu::is_for_one_thread;
use msdeform::{
    CpuOptions, CpuPlan, Direction, PlanCache, Problem, Role, TensorView, TensorViewMut,
};
use msdeform_cuda::Pointers;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::call::Key;
use crate::error::CallError;
use crate::memory::{slice, slice_mut};

/// Plans kept: a model has a few problems, and training goes through more with every image size.
const PLANS: usize = 16;

struct Processor {
    plans: PlanCache<Box<[i64]>, CpuPlan>,
    pool: Option<Pool>,
}

struct Pool {
    threads: usize,
    /// The process that started it: threads do not survive a fork.
    process: u32,
    pool: Option<ThreadPool>,
}

impl Drop for Pool {
    /// In a forked process the threads stayed with the parent: nothing here could stop them, and a lock that one
    /// of them held at the fork would be waited for forever.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.pool.take());
        }
    }
}

thread_local! {
    static PROCESSOR: RefCell<Processor> =
        const { RefCell::new(Processor { plans: PlanCache::new(PLANS), pool: None }) };
}

/// Elements from one image to the next and from one query to the next: of the references, with those from one reference to
/// the next, of the offsets and of the logits. Everything else of them is contiguous.
pub type SourceStrides = ((usize, usize, usize), (usize, usize), (usize, usize));

/// Computes the output, or the gradients that have an address.
///
/// # Errors
/// What is wrong with the call.
///
/// # Safety
/// Every address leads to a contiguous tensor that `key` describes, or to one with these strides. Until this returns, no
/// code writes to the tensors that are read, and no other code touches the tensors that are written.
pub unsafe fn run(
    direction: Direction,
    key: &Key,
    pointers: &Pointers,
    strides: Option<&SourceStrides>,
) -> Result<(), CallError> {
    with_prepared(key, |prepared, pool| {
        let tensors = Tensors { problem: prepared.problem(), pointers, strides };
        let operator = tensors.problem.operator();
        let upstream = operator.output.gradient().filter(|_| direction == Direction::Backward);
        // As many as a call has at most.
        let (mut read, mut written) = ([const { None }; 5], [const { None }; 4]);
        // SAFETY: passed on from the caller; the lengths are those of the problem.
        unsafe {
            for (to, role) in read.iter_mut().zip(operator.inputs.iter().copied().chain(upstream)) {
                *to = Some((role, tensors.read(role)?));
            }
            for (to, role) in written.iter_mut().zip(operator.written(direction)) {
                // A null address means that the caller does not need this gradient.
                if role == operator.output || tensors.address(role) != 0 {
                    *to = Some((role, tensors.write(role)?));
                }
            }
        }
        let (read, written) = (read.into_iter().flatten(), written.into_iter().flatten());
        Ok(pool.run(move || prepared.run(read, written))?)
    })
}

/// The tensors of a call as the library takes them.
struct Tensors<'a> {
    problem: &'a Problem,
    pointers: &'a Pointers,
    strides: Option<&'a SourceStrides>,
}

impl Tensors<'_> {
    /// # Safety
    /// The address leads to this tensor of the problem. The tensor lives for `'a`, and no code writes to it meanwhile.
    unsafe fn read<'a>(&self, role: Role) -> Result<TensorView<'a>, CallError> {
        // SAFETY: passed on from the caller.
        unsafe {
            match (role, self.strides) {
                (Role::References, Some(&((image, query, step), _, _))) => {
                    self.read_strided(role, &[image, query, step])
                }
                (Role::Offsets, Some(&(_, (image, query), _)))
                | (Role::Logits, Some(&(_, _, (image, query)))) => {
                    self.read_strided(role, &[image, query])
                }
                _ => {
                    let (dtype, len) = (self.problem.format_of(role), self.problem.len_of(role));
                    slice(role.name(), dtype, self.address(role), len)
                }
            }
        }
    }

    /// # Safety
    /// As of [`Tensors::read`], for a tensor whose first axes have these strides.
    unsafe fn read_strided<'a>(
        &self,
        role: Role,
        outer: &[usize],
    ) -> Result<TensorView<'a>, CallError> {
        let (dtype, problem) = (self.problem.format_of(role), self.problem);
        let shape = problem.shape_of(role);
        let inner = &shape[outer.len()..];
        let strides: Vec<usize> = outer
            .iter()
            .copied()
            .chain((1..=inner.len()).map(|axis| inner[axis..].iter().product()))
            .collect();
        let reach = shape.iter().zip(&strides).try_fold(1usize, |reach, (&size, &stride)| {
            reach.checked_add(size.saturating_sub(1).checked_mul(stride)?)
        });
        let len = if shape.contains(&0) { Some(0) } else { reach };
        let len = len.ok_or(msdeform::Error::TooLarge { tensor: role.name() })?;
        // SAFETY: passed on from the caller.
        let elements = unsafe { slice(role.name(), dtype, self.address(role), len)? };
        let strides: Vec<isize> = strides.iter().map(|stride| stride.cast_signed()).collect();
        Ok(TensorView::strided(elements, &shape, &strides)?)
    }

    /// # Safety
    /// The address leads to this tensor of the problem, which lives for `'a` and is the caller's alone.
    unsafe fn write<'a>(&self, role: Role) -> Result<TensorViewMut<'a>, CallError> {
        let (dtype, len) = (self.problem.format_of(role), self.problem.len_of(role));
        // SAFETY: passed on from the caller.
        unsafe { slice_mut(role.name(), dtype, self.address(role), len) }
    }

    fn address(&self, role: Role) -> usize {
        self.pointers.get(role) as usize
    }
}

/// Where the work of a call is shared out.
enum Workers<'a> {
    Caller,
    Pool(&'a ThreadPool),
}

impl Workers<'_> {
    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Caller => work(),
            Self::Pool(pool) => pool.install(work),
        }
    }
}

/// Finds or makes the plan of a key and runs something with it. Meanwhile the plan is out of the cache, so a call that
/// panics takes it along.
fn with_prepared<T>(
    key: &Key,
    run: impl FnOnce(&mut CpuPlan, &Workers<'_>) -> Result<T, CallError>,
) -> Result<T, CallError> {
    PROCESSOR.with_borrow_mut(|Processor { plans, pool }| {
        let threads = usize::try_from(key.head().place).unwrap_or(1);
        let (numbers, mut prepared) = match plans.take(|known| **known == *key.numbers()) {
            Some(known) => known,
            None => (key.numbers().into(), prepare(&key.problem()?, threads, pool)?),
        };
        let workers = match prepared.threads() {
            1 => Workers::Caller,
            _ => Workers::Pool(pool_of(pool, threads)?),
        };
        let result = run(&mut prepared, &workers);
        let bytes = prepared.workspace_bytes();
        drop(plans.put(numbers, prepared, bytes));
        result
    })
}

fn prepare(
    problem: &Problem,
    threads: usize,
    pool: &mut Option<Pool>,
) -> Result<CpuPlan, CallError> {
    if threads <= 1 || is_for_one_thread(problem) {
        let alone = CpuOptions { threads: Some(1), isa: None };
        return Ok(CpuPlan::new(problem, &alone)?);
    }
    let pool = pool_of(pool, threads)?;
    Ok(pool.install(|| CpuPlan::new(problem, &CpuOptions::default()))?)
}

/// The worker threads, started where there are none of that number, or none any more.
fn pool_of(pool: &mut Option<Pool>, threads: usize) -> Result<&ThreadPool, CallError> {
    let process = std::process::id();
    let fits = |found: &Pool| found.threads == threads && found.process == process;
    if !pool.as_ref().is_some_and(fits) {
        // Before others are started.
        *pool = None;
        let started = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("msdeform-{index}"))
            .build()
            .map_err(|error| msdeform::Error::Threads { threads, reason: error.to_string() })?;
        *pool = Some(Pool { threads, process, pool: Some(started) });
    }
    pool.as_ref().and_then(|pool| pool.pool.as_ref()).ok_or_else(|| {
        let reason = "the pool is gone".to_owned();
        msdeform::Error::Threads { threads, reason }.into()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    /// Two threads that count themselves when they end.
    fn counted(process: u32, ended: &Arc<AtomicUsize>) -> Pool {
        let ended = Arc::clone(ended);
        let count = move |_| {
            ended.fetch_add(1, Ordering::Relaxed);
        };
        let pool = ThreadPoolBuilder::new().num_threads(2).exit_handler(count).build().unwrap();
        Pool { threads: 2, process, pool: Some(pool) }
    }

    #[test]
    fn a_pool_of_the_parent_is_left_alone_and_one_of_our_own_ends() {
        let process = std::process::id();
        let (of_parent, own) = (Arc::default(), Arc::default());
        let mut pool = Some(counted(process + 1, &of_parent));
        pool_of(&mut pool, 2).unwrap();
        drop(counted(process + 1, &of_parent));
        drop(counted(process, &own));
        let until = Instant::now() + Duration::from_secs(20);
        while own.load(Ordering::Relaxed) < 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((own.load(Ordering::Relaxed), of_parent.load(Ordering::Relaxed)), (2, 0));
    }

    #[test]
    fn a_pool_is_kept_while_it_has_the_number_that_is_wanted() {
        let mut pool = None;
        let first: *const ThreadPool = pool_of(&mut pool, 2).unwrap();
        assert!(std::ptr::eq(first, pool_of(&mut pool, 2).unwrap()));
        assert_eq!(pool_of(&mut pool, 3).unwrap().current_num_threads(), 3);
    }
}
