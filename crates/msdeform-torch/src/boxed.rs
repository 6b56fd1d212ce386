//! How PyTorch calls a kernel, and how a kernel says that it cannot.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{CallError, Kind};
use crate::libtorch::{Libtorch, StableIValue};
use crate::tensor::{Object, Tensor, is_set};

/// What a kernel does: takes its arguments in the order of the schema and returns its results.
pub trait Kernel {
    /// How many arguments the schema has.
    const ARGUMENTS: usize;
    /// How many results the schema has.
    const RESULTS: usize;

    /// Computes. All arguments are taken before anything can fail: those that were not taken would leak.
    fn run(arguments: &mut Arguments<'_>) -> Result<Vec<Tensor>, CallError>;
}

/// The arguments of a call, each of them taken once.
pub struct Arguments<'a> {
    torch: &'static Libtorch,
    values: std::slice::Iter<'a, StableIValue>,
}

impl Arguments<'_> {
    /// The libtorch that calls.
    pub const fn torch(&self) -> &'static Libtorch {
        self.torch
    }

    // As many are taken as the schema has; `run` has counted them.
    fn next(&mut self) -> StableIValue {
        self.values.next().copied().unwrap_or_default()
    }

    /// The next one is a tensor, or a list of numbers or of flags.
    pub fn object<T: Object>(&mut self) -> T {
        // SAFETY: the schema says so, and arguments belong to the kernel.
        unsafe { T::from_value(self.torch, self.next()) }
    }

    /// The next one is such an object or nothing.
    pub fn optional<T: Object>(&mut self) -> Option<T> {
        let at: *mut StableIValue = std::ptr::with_exposed_provenance_mut(self.next() as usize);
        if at.is_null() {
            return None;
        }
        // SAFETY: the address of a value, which belongs to the kernel.
        let object = unsafe { T::from_value(self.torch, *at) };
        if let Some(delete) = self.torch.delete_value() {
            // SAFETY: read just now, and not again. Kernels with optional arguments are registered only where this is.
            unsafe { delete(at) };
        }
        Some(object)
    }

    /// The next one is a flag.
    pub fn flag(&mut self) -> bool {
        is_set(self.next().cast_signed())
    }

    /// The next one is a number with a fraction.
    pub fn fraction(&mut self) -> f64 {
        f64::from_bits(self.next())
    }
}

/// The kernel as PyTorch calls it.
///
/// # Safety
/// Called by PyTorch, for an operator whose schema has the kernel's arguments and results.
pub unsafe extern "C-unwind" fn boxed<K: Kernel>(
    stack: *mut StableIValue,
    arguments: u64,
    results: u64,
) {
    // An exception of C++ goes through this function, and through no other of ours. It has nothing to clean up, and so needs nothing
    // of this library's own unwinder, which need not be the one that the exception is thrown with.
    // SAFETY: passed on from the caller.
    let refusal = unsafe { run::<K>(stack, arguments, results) };
    if !refusal.is_null() {
        // SAFETY: text of this thread that stays until the thread's next refusal; PyTorch copies it.
        unsafe { throw(refusal) };
    }
}

/// Throws a text as PyTorch's error.
///
/// # Safety
/// It is a C string.
unsafe extern "C-unwind" fn throw(text: *const c_char) {
    const FUNCTION: &CStr = c"msdeform";
    const FILE: &CStr = c"msdeform-torch";
    if let Some(torch) = Libtorch::found() {
        // SAFETY: four C strings and a number, as the header says. It throws through frames that may be thrown through.
        unsafe { (torch.check)(false, FUNCTION.as_ptr(), FILE.as_ptr(), line!(), text) };
    }
}

/// Null, or what to throw.
///
/// # Safety
/// As of [`boxed`].
#[inline(never)]
unsafe fn run<K: Kernel>(stack: *mut StableIValue, arguments: u64, results: u64) -> *const c_char {
    // A panic must not reach PyTorch, and is no reason to end the process.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let torch = Libtorch::found()
            .ok_or_else(|| CallError::Torch("called without a libtorch".to_owned()))?;
        if (arguments, results) != (K::ARGUMENTS as u64, K::RESULTS as u64) {
            return Err(CallError::Torch(format!(
                "the operator has {arguments} arguments and {results} results, its kernel {} and {}; \
                 the library and the definition are of different versions",
                K::ARGUMENTS,
                K::RESULTS
            )));
        }
        // SAFETY: PyTorch has put as many values there as it says.
        let values = unsafe { std::slice::from_raw_parts(stack, K::ARGUMENTS) };
        let made = K::run(&mut Arguments { torch, values: values.iter() })?;
        for (at, tensor) in made.into_iter().take(K::RESULTS).enumerate() {
            // SAFETY: there is room for the larger of both numbers.
            unsafe { stack.add(at).write(tensor.into_value()) };
        }
        Ok(())
    }));
    match outcome {
        Ok(Ok(())) => std::ptr::null(),
        Ok(Err(error)) => refuse(error.kind(), error.to_string()),
        Err(_) => {
            let text = "msdeform broke off in the middle of a call; please report it with the line that was printed";
            refuse(Kind::Runtime, text.to_owned())
        }
    }
}

thread_local! {
    static REFUSAL: RefCell<Option<(Kind, CString)>> = const { RefCell::new(None) };
}

fn refuse(kind: Kind, mut text: String) -> *const c_char {
    text.retain(|character| character != '\0');
    let text = CString::new(text).unwrap_or_default();
    REFUSAL.with_borrow_mut(|refusal| refusal.insert((kind, text)).1.as_ptr())
}

/// Why the last kernel that refused a call of this thread did so. PyTorch's own error carries the words alone.
pub fn take_refusal() -> Option<(Kind, String)> {
    let (kind, text) = REFUSAL.take()?;
    Some((kind, text.to_string_lossy().into_owned()))
}
