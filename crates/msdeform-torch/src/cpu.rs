//! The CPU: plans and worker threads of the calling thread.
//!
//! Both belong to the thread that calls, as OpenMP teams do: nothing is locked, and a process that forked
//! (a data loader's worker) finds its own thread's state whole.

use std::cell::RefCell;
use std::ffi::c_void;

use msdeform::cpu::is_for_one_thread;
use msdeform::{
    CpuOptions, CpuPlan, DType, Direction, PlanCache, Problem, Role, TensorView, TensorViewMut,
};
use msdeform_cuda::Pointers;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::call::{Call, Described};
use crate::error::CallError;

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

/// Computes the output, or the gradients that have an address.
///
/// # Safety
/// Every address leads to a tensor of the call, contiguous but for its free axes. Until this returns, no code writes to the
/// tensors that are read, and no other code touches the tensors that are written.
pub unsafe fn run(
    direction: Direction,
    call: &Call<'_>,
    pointers: &Pointers,
) -> Result<(), CallError> {
    with_prepared(call, |prepared, workers| {
        let problem = prepared.problem();
        let operator = problem.operator();
        let elements = |role: Role, address: u64| {
            let (dtype, len) = (problem.format_of(role), problem.len_of(role));
            Ok::<_, CallError>((dtype, pointer(role, dtype, address, len)?, len))
        };
        // As many as a call has at most.
        let (mut read, mut written) = ([const { None }; 5], [const { None }; 4]);
        let inputs = operator.inputs.iter().zip(&call.inputs.tensors);
        for (to, (&role, tensor)) in read.iter_mut().zip(inputs) {
            let view = if role.free_axes(true) == 0 {
                let (dtype, data, len) = elements(role, tensor.address)?;
                // SAFETY: passed on from the caller; dtype and length are those of the problem.
                unsafe { TensorView::from_raw_parts(dtype, data, len) }
            } else {
                // SAFETY: passed on from the caller.
                unsafe { rows(problem, role, tensor)? }
            };
            *to = Some((role, view));
        }
        if let (Direction::Backward, Some(role)) = (direction, operator.output.gradient()) {
            let (dtype, data, len) = elements(role, pointers.get(role))?;
            // SAFETY: as above.
            let upstream = unsafe { TensorView::from_raw_parts(dtype, data, len) };
            read[4] = Some((role, upstream));
        }
        for (to, role) in written.iter_mut().zip(operator.written(direction)) {
            // A null address means that the caller does not need this gradient.
            if role == operator.output || pointers.get(role) != 0 {
                let (dtype, data, len) = elements(role, pointers.get(role))?;
                // SAFETY: as above.
                let result = unsafe { TensorViewMut::from_raw_parts(dtype, data, len) };
                *to = Some((role, result));
            }
        }
        let (read, written) = (read.into_iter().flatten(), written.into_iter().flatten());
        match workers {
            Some(pool) => pool.install(move || prepared.run(read, written))?,
            None => prepared.run(read, written)?,
        }
        Ok(())
    })
}

/// An input whose first axes have any strides.
///
/// # Safety
/// The tensor is this one of the problem, lives for `'a`, and no code writes to it meanwhile.
unsafe fn rows<'a>(
    problem: &Problem,
    role: Role,
    tensor: &Described<'_>,
) -> Result<TensorView<'a>, CallError> {
    let (shape, dtype) = (problem.shape_of(role), problem.format_of(role));
    let size = |axis| {
        let stride = tensor.stride(axis);
        isize::try_from(stride)
            .ok()
            .filter(|&stride| stride >= 0)
            .ok_or_else(|| CallError::Size(stride.to_string()))
    };
    // At most three axes are free; a call allocates nothing for them.
    let mut strides = [0isize; 3];
    let outer = &mut strides[..role.free_axes(true)];
    for (axis, stride) in outer.iter_mut().enumerate() {
        *stride = size(axis)?;
    }
    let outer = &*outer;
    let packed: usize = shape[outer.len()..].iter().product();
    let reach = shape.iter().zip(outer).try_fold(packed, |reach, (&size, stride)| {
        reach.checked_add(size.saturating_sub(1).checked_mul(stride.unsigned_abs())?)
    });
    let len = if shape.contains(&0) { Some(0) } else { reach };
    let len = len.ok_or(msdeform::Error::TooLarge { tensor: role.name() })?;
    let data = pointer(role, dtype, tensor.address, len)?;
    // SAFETY: passed on from the caller; dtype and length are those of the problem.
    let elements = unsafe { TensorView::from_raw_parts(dtype, data, len) };
    Ok(TensorView::of_rows(problem, role, elements, outer)?)
}

/// The address of `len` elements. An empty tensor may have any address, an ordinary one must not be null.
fn pointer(role: Role, dtype: DType, address: u64, len: usize) -> Result<*mut c_void, CallError> {
    let (tensor, element_bytes) = (role.name(), dtype.size_bytes());
    match (address, len) {
        (0, 1..) => Err(CallError::NoMemory { tensor }),
        // Not null and not aligned cannot come from PyTorch or from a NumPy array that owns its memory.
        (_, 1..) if !address.is_multiple_of(element_bytes as u64) => {
            Err(msdeform_cuda::Error::MisalignedElement { tensor, address, element_bytes }.into())
        }
        _ => Ok(std::ptr::with_exposed_provenance_mut(address as usize)),
    }
}

/// Finds or makes the plan of a call and runs something with it. Meanwhile the plan is out of the cache, so a call that
/// panics takes it along.
fn with_prepared(
    call: &Call<'_>,
    run: impl FnOnce(&mut CpuPlan, Option<&ThreadPool>) -> Result<(), CallError>,
) -> Result<(), CallError> {
    let find = |numbers: &[i64], Processor { plans, pool }: &mut Processor| {
        let threads = usize::try_from(call.place).unwrap_or(1);
        let (key, mut prepared) = match plans.take(|known| **known == *numbers) {
            Some(known) => known,
            None => (numbers.into(), prepare(&call.problem()?, threads, pool)?),
        };
        let workers = match prepared.threads() {
            1 => None,
            _ => Some(pool_of(pool, threads)?),
        };
        let result = run(&mut prepared, workers);
        let bytes = prepared.workspace_bytes();
        drop(plans.put(key, prepared, bytes));
        result
    };
    call.with_numbers(|numbers| PROCESSOR.with_borrow_mut(|processor| find(numbers, processor)))
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
