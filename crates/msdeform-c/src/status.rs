//! What a function answers: a code, and a text where the caller wants it.

use std::any::Any;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use msdeform::Error;
use msdeform_cuda::Error as CudaError;

use crate::border::aligned;

/// What a function answers. Codes are never given a new meaning; new ones may come.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_status {
    /// It is done.
    Ok = 0,
    /// A pointer that must lead somewhere is null.
    NullPointer = 1,
    /// A pointer is not a multiple of what its type needs.
    Misaligned = 2,
    /// A number that is not a constant of its enumeration, or an unknown name.
    UnknownConstant = 3,
    /// A `struct_size` that no version of the header has, or a field of a newer version that this library does not know.
    StructSize = 4,
    /// Sizes, levels or lists of a description that do not fit each other.
    BadProblem = 5,
    /// A rule for offsets that cannot be followed.
    BadOffsets = 6,
    /// A tensor with too few bytes, or with others than its shape has.
    BadLength = 7,
    /// Strides that cannot be followed, or that this tensor cannot have.
    BadStrides = 8,
    /// A tensor that is written lies over another one.
    Overlap = 9,
    /// A tensor that the call does not have.
    WrongTensor = 10,
    /// A problem that the backend, the instruction set or the variant does not compute.
    Unsupported = 11,
    /// The system gives no memory.
    NoMemory = 12,
    /// Threads cannot be started, or not so many.
    Threads = 13,
    /// The plan is computing another call.
    Busy = 14,
    /// A defect of the library. The plan of that call can only be destroyed.
    Panicked = 15,
    /// No GPU of this machine can be used, for want of a driver, of its compiler NVRTC or of a GPU that is new enough.
    CudaUnavailable = 32,
    /// A kernel was not compiled or not loaded.
    CudaCompile = 33,
    /// A pointer or a stream that is not one of the plan's device.
    CudaPointer = 34,
    /// The GPU has no memory left.
    CudaNoMemory = 35,
    /// The GPU has faulted, or the process was forked off one that used CUDA: it cannot use the GPU any more.
    CudaLost = 36,
    /// What else the CUDA driver refuses.
    CudaDriver = 37,
}

/// Memory of the caller for the text of an error. Functions take null if the caller does not want the text.
///
/// On success the text is empty. A text that does not fit is cut between two characters (it is UTF-8).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_message {
    /// Where the text goes, with a zero at its end.
    pub text: *mut c_char,
    /// Bytes there, the zero included.
    pub capacity: usize,
    /// Set by the function: bytes of the whole text, without the zero. It was cut if that is not less than `capacity`.
    pub length: usize,
}

/// The name of a code, such as "MSDEFORM_STATUS_BAD_LENGTH"; of an unknown one "unknown". Never null, never freed.
///
/// Any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn msdeform_status_name(status: i32) -> *const c_char {
    let known = NAMES.iter().find(|(code, _)| *code as i32 == status);
    known.map_or(c"unknown", |(_, name)| name).as_ptr()
}

/// Every code with its name.
#[doc(hidden)]
pub const NAMES: &[(msdeform_status, &CStr)] = {
    use msdeform_status::*;
    &[
        (Ok, c"MSDEFORM_STATUS_OK"),
        (NullPointer, c"MSDEFORM_STATUS_NULL_POINTER"),
        (Misaligned, c"MSDEFORM_STATUS_MISALIGNED"),
        (UnknownConstant, c"MSDEFORM_STATUS_UNKNOWN_CONSTANT"),
        (StructSize, c"MSDEFORM_STATUS_STRUCT_SIZE"),
        (BadProblem, c"MSDEFORM_STATUS_BAD_PROBLEM"),
        (BadOffsets, c"MSDEFORM_STATUS_BAD_OFFSETS"),
        (BadLength, c"MSDEFORM_STATUS_BAD_LENGTH"),
        (BadStrides, c"MSDEFORM_STATUS_BAD_STRIDES"),
        (Overlap, c"MSDEFORM_STATUS_OVERLAP"),
        (WrongTensor, c"MSDEFORM_STATUS_WRONG_TENSOR"),
        (Unsupported, c"MSDEFORM_STATUS_UNSUPPORTED"),
        (NoMemory, c"MSDEFORM_STATUS_NO_MEMORY"),
        (Threads, c"MSDEFORM_STATUS_THREADS"),
        (Busy, c"MSDEFORM_STATUS_BUSY"),
        (Panicked, c"MSDEFORM_STATUS_PANICKED"),
        (CudaUnavailable, c"MSDEFORM_STATUS_CUDA_UNAVAILABLE"),
        (CudaCompile, c"MSDEFORM_STATUS_CUDA_COMPILE"),
        (CudaPointer, c"MSDEFORM_STATUS_CUDA_POINTER"),
        (CudaNoMemory, c"MSDEFORM_STATUS_CUDA_NO_MEMORY"),
        (CudaLost, c"MSDEFORM_STATUS_CUDA_LOST"),
        (CudaDriver, c"MSDEFORM_STATUS_CUDA_DRIVER"),
    ]
};

/// Everything that can be wrong with a call from C.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("`{0}` is null")]
    NullPointer(&'static str),
    #[error("`{name}` is at {address:#x}, not a multiple of {alignment}")]
    Misaligned { name: &'static str, address: usize, alignment: usize },
    #[error("`{name}` is {value}; known: {known}")]
    UnknownConstant { name: &'static str, value: i64, known: &'static str },
    #[error("`{name}` is no UTF-8")]
    NotUtf8 { name: &'static str },
    #[error("`struct_size` of `{name}` is {found}; set it to sizeof({name})")]
    StructSize { name: &'static str, found: usize },
    #[error(
        "`{name}` has fields that this library does not know ({found} bytes, {known} are known), and one is set; use a \
         newer libmsdeform, or leave what is new at zero"
    )]
    NewerStruct { name: &'static str, found: usize, known: usize },
    #[error(
        "`{0}` of the description is not set; set it, to 0 if there are none \
         (msdeform_problem_description_init leaves it at -1)"
    )]
    Unset(&'static str),
    #[error("`{tensor}` has {found} bytes, expected {required}{or_more}")]
    Length { tensor: &'static str, found: usize, required: usize, or_more: &'static str },
    #[error("strides of `{tensor}`: {reason}")]
    Strides { tensor: &'static str, reason: String },
    #[error("`{written}`, which is written, lies over `{other}`; give each memory of its own")]
    Overlap { written: &'static str, other: &'static str },
    #[error("`{tensor}` is given, but {reason}")]
    WrongTensor { tensor: &'static str, reason: String },
    #[error("{0}")]
    Options(&'static str),
    #[error("`count` of `threads` is {0}, expected 1 or more")]
    ThreadCount(i64),
    #[error("the plan is computing another call; give each thread a plan of its own")]
    Busy,
    #[error("an earlier call of this plan panicked; destroy it and make another one")]
    Poisoned,
    #[error(transparent)]
    Problem(#[from] Error),
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl Failure {
    fn status(&self) -> msdeform_status {
        use msdeform_status as Status;
        match self {
            Self::NullPointer(_) => Status::NullPointer,
            Self::Misaligned { .. } => Status::Misaligned,
            Self::UnknownConstant { .. } | Self::NotUtf8 { .. } => Status::UnknownConstant,
            Self::StructSize { .. } | Self::NewerStruct { .. } => Status::StructSize,
            Self::Unset(_) => Status::BadProblem,
            Self::Length { .. } => Status::BadLength,
            Self::Strides { .. } => Status::BadStrides,
            Self::Overlap { .. } => Status::Overlap,
            Self::WrongTensor { .. } => Status::WrongTensor,
            Self::Options(_) | Self::ThreadCount(_) => Status::Threads,
            Self::Busy => Status::Busy,
            Self::Poisoned => Status::Panicked,
            Self::Problem(error) => status_of_problem(error),
            Self::Cuda(error) => status_of_cuda(error),
        }
    }
}

fn status_of_problem(error: &Error) -> msdeform_status {
    use msdeform_status as Status;
    match error {
        Error::UnknownDtype { .. } | Error::UnknownLayout { .. } | Error::UnknownVariant { .. } => {
            Status::UnknownConstant
        }
        Error::DtypeMismatch { .. }
        | Error::LengthMismatch { .. }
        | Error::ShapeMismatch { .. } => Status::BadLength,
        Error::Strides { .. } => Status::BadStrides,
        Error::Unsupported { .. } => Status::Unsupported,
        Error::NoMemory { .. } => Status::NoMemory,
        Error::OffsetRule { .. } => Status::BadOffsets,
        Error::Threads { .. } => Status::Threads,
        // What is left, and what may come, is about sizes and levels.
        _ => Status::BadProblem,
    }
}

fn status_of_cuda(error: &CudaError) -> msdeform_status {
    use msdeform_status as Status;
    match error {
        CudaError::MissingDriver
        | CudaError::OldDriver { .. }
        | CudaError::NoDevice { .. }
        | CudaError::OldGpu { .. }
        | CudaError::MissingNvrtc { .. }
        | CudaError::BadNvrtc { .. }
        | CudaError::UnknownArch { .. } => Status::CudaUnavailable,
        CudaError::Compile { .. }
        | CudaError::Load { .. }
        | CudaError::UncompiledInCapture { .. } => Status::CudaCompile,
        CudaError::NullPointer { .. } => Status::NullPointer,
        CudaError::MisalignedElement { .. } | CudaError::MisalignedWorkspace { .. } => {
            Status::Misaligned
        }
        CudaError::BufferTooSmall { .. } => Status::BadLength,
        CudaError::HostPointer { .. }
        | CudaError::WrongDevice { .. }
        | CudaError::WrongContext { .. }
        | CudaError::ReadOnly { .. } => Status::CudaPointer,
        CudaError::OutOfMemory { .. } => Status::CudaNoMemory,
        CudaError::ContextLost(_) | CudaError::Forked => Status::CudaLost,
        CudaError::Knob { .. } => Status::UnknownConstant,
        CudaError::Problem(error) => status_of_problem(error),
        // `Launch`, `Driver`, and what may come.
        _ => Status::CudaDriver,
    }
}

/// Runs the body of a function of the interface: no panic leaves it, and what goes wrong becomes a code and a text.
pub(crate) fn entry(
    message: *mut msdeform_message,
    body: impl FnOnce() -> Result<(), Failure>,
) -> msdeform_status {
    let message = match MessageOfCaller::new(message) {
        Ok(message) => message,
        // Without a message the status is all that can be returned.
        Err(failure) => return failure.status(),
    };
    // A panic leaves a plan half done, but also poisons its lock, so that no later call uses the plan.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => {
            message.write("");
            msdeform_status::Ok
        }
        Ok(Err(failure)) => {
            message.write(&failure.to_string());
            failure.status()
        }
        Err(panic) => {
            let what = text_of(&*panic);
            message
                .write(&format!("msdeform panicked, which is a defect; please report it: {what}"));
            msdeform_status::Panicked
        }
    }
}

/// The same for what has nothing to answer with: functions that destroy.
pub(crate) fn silently(body: impl FnOnce()) {
    // A destructor has no status to return.
    let _ = catch_unwind(AssertUnwindSafe(body));
}

/// A function of the interface in which something panics.
#[doc(hidden)]
pub fn panics(message: *mut msdeform_message) -> msdeform_status {
    entry(message, || std::panic::resume_unwind(Box::new("on purpose")))
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// Writes a text that is no error.
pub(crate) fn write_text(
    to: *mut msdeform_message,
    text: impl FnOnce() -> Result<String, Failure>,
) -> msdeform_status {
    let mut found = String::new();
    let status = entry(to, || {
        found = text()?;
        Ok(())
    });
    if status == msdeform_status::Ok
        && let Ok(to) = MessageOfCaller::new(to)
    {
        to.write(&found);
    }
    status
}

/// A checked place for a text.
struct MessageOfCaller(*mut msdeform_message);

impl MessageOfCaller {
    fn new(message: *mut msdeform_message) -> Result<Self, Failure> {
        if message.is_null() {
            return Ok(Self(message));
        }
        aligned("message", message)?;
        // SAFETY: not null and aligned; the caller promises that it leads to a message.
        let msdeform_message { text, capacity, .. } = unsafe { *message };
        if text.is_null() && capacity > 0 {
            return Err(Failure::NullPointer("message.text"));
        }
        Ok(Self(message))
    }

    fn write(&self, whole: &str) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: `new` looked at it; the caller promises that it is a message and the calling thread's alone.
        let message = unsafe { &mut *self.0 };
        message.length = whole.len();
        let Some(room) = message.capacity.checked_sub(1) else { return };
        let cut = whole.floor_char_boundary(room);
        // SAFETY: the caller promises `capacity` bytes at `text`, which is not null; `cut` and the zero fit in.
        unsafe {
            std::ptr::copy_nonoverlapping(whole.as_ptr(), message.text.cast(), cut);
            *message.text.add(cut) = 0;
        }
    }
}
