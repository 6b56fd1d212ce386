//! What can go wrong between a call and the GPU, and what to do about it.

use std::fmt;
use std::path::PathBuf;

use crate::driver::{Launched, lost_context, was_initialised_before_a_fork};

/// A CUDA version as the driver and NVRTC number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion {
    /// The `13` of 13.1.
    pub major: u32,
    /// The `1` of 13.1.
    pub minor: u32,
}

impl CudaVersion {
    /// From the number the driver reports: 13010 is 13.1.
    pub(crate) const fn from_driver(number: i32) -> Self {
        let number = number.unsigned_abs();
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A driver call that failed, in the driver's own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {name} ({description})")]
pub struct DriverError {
    /// The function called.
    pub call: &'static str,
    /// The number it returned.
    pub code: u32,
    /// The name of that number, such as `CUDA_ERROR_INVALID_VALUE`.
    pub name: String,
    /// The driver's description of it.
    pub description: String,
}

impl DriverError {
    /// Whether the GPU faulted, which ends the context: every later call returns the same error until the
    /// process ends. The CUDA documentation states this for each of these.
    pub(crate) const fn is_fault(&self) -> bool {
        matches!(
            self.code,
            214   // ECC_UNCORRECTABLE
            | 220 // NVLINK_UNCORRECTABLE
            | 226 // CONTAINED
            | 700 // ILLEGAL_ADDRESS
            | 702 // LAUNCH_TIMEOUT
            | 710 // ASSERT
            | 714 // HARDWARE_STACK_ERROR
            | 715 // ILLEGAL_INSTRUCTION
            | 716 // MISALIGNED_ADDRESS
            | 717 // INVALID_ADDRESS_SPACE
            | 718 // INVALID_PC
            | 719 // LAUNCH_FAILED
            | 721 // TENSOR_MEMORY_LEAK
            | 911 // EXTERNAL_DEVICE
        )
    }
}

/// A GPU that has faulted, and with it the context of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextLost {
    /// The call that reported it, which need not be the one that caused it.
    pub source: DriverError,
    /// The device, where it is known.
    pub device: Option<usize>,
    /// What it is put down to.
    pub cause: Cause,
}

/// What a fault is put down to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The launch that was waited for when the driver reported it.
    Exactly(Launched),
    /// One of our launches that no call had waited for, newest first, or a kernel of another library. The
    /// oldest are missing where there are many.
    OneOf(Vec<Launched>),
}

/// Launches that a message names; all of them are in [`Cause::OneOf`].
const NAMED: usize = 8;

impl fmt::Display for ContextLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source: DriverError { call, name, description, .. }, device, cause } = self;
        match device {
            Some(device) => write!(f, "CUDA device {device}")?,
            None => f.write_str("a CUDA device")?,
        }
        write!(f, " has faulted: {name} ({description}), ")?;
        match cause {
            Cause::Exactly(launched) => write!(
                f,
                "in {launched}, reported by {call}. Check that the tensors given to it were still allocated \
                 and as large as promised, else please report it"
            )?,
            Cause::OneOf(launches) => write!(
                f,
                "reported by {call}, caused by an earlier kernel, perhaps of another library in this process. \
                 {}. With CUDA_LAUNCH_BLOCKING=1 in the environment the kernel is named when it is launched",
                suspects(launches)
            )?,
        }
        f.write_str(
            ". The CUDA context is lost: this process must be restarted, nothing in it can use the GPU \
             any more",
        )
    }
}

fn suspects(launches: &[Launched]) -> String {
    let named: Vec<String> = launches.iter().take(NAMED).map(Launched::to_string).collect();
    let named = named.join(", ");
    let known = "Launches of msdeform that were not waited for, newest first";
    match launches.len() {
        0 => "No launch of msdeform is known to have been under way (replays of CUDA graphs are not seen)"
            .to_owned(),
        count if count > NAMED => format!("{known}: {named} and {} before", count - NAMED),
        _ => format!("{known}: {named}"),
    }
}

impl std::error::Error for ContextLost {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Everything that can go wrong in this crate. Nothing in it panics on bad input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no CUDA driver on this machine.
    #[error(
        "no CUDA driver on this machine (libcuda.so.1 cannot be loaded); install the NVIDIA driver, \
         in a container start it with `--gpus all`, or use the CPU backend"
    )]
    MissingDriver,
    /// The driver is older than the interface this crate uses.
    #[error(
        "the CUDA driver supports CUDA {found}, at least {required} is needed; update the NVIDIA \
         driver or use the CPU backend"
    )]
    OldDriver {
        /// What the driver supports.
        found: CudaVersion,
        /// What this crate needs.
        required: CudaVersion,
    },
    /// The driver is there but no such GPU.
    #[error(
        "there is no CUDA device {ordinal}: the driver sees {count}; check `nvidia-smi` and \
         CUDA_VISIBLE_DEVICES"
    )]
    NoDevice {
        /// The device asked for.
        ordinal: usize,
        /// Devices the driver sees.
        count: usize,
    },
    /// The GPU is older than the instructions the kernels use.
    #[error(
        "{name} has compute capability {major}.{minor}, the kernels need 8.0 (Ampere) or newer; use \
         the CPU backend"
    )]
    OldGpu {
        /// The GPU.
        name: String,
        /// Its compute capability.
        major: u32,
        /// Its compute capability.
        minor: u32,
    },
    /// No NVRTC was found anywhere.
    #[error(
        "NVRTC, the CUDA run-time compiler, was not found; `pip install nvidia-cuda-nvrtc` in the \
         active environment, install a CUDA toolkit, or set MSDEFORM_NVRTC to libnvrtc.so. Searched: \
         {searched}"
    )]
    MissingNvrtc {
        /// The places that were tried.
        searched: String,
    },
    /// A file that should be NVRTC is not usable.
    #[error("cannot use {path} as NVRTC: {reason}; set MSDEFORM_NVRTC to another libnvrtc.so")]
    BadNvrtc {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The compiler does not know the GPU.
    #[error(
        "NVRTC {compiler} cannot compile for {arch}; install a newer one with `pip install -U \
         nvidia-cuda-nvrtc` and set MSDEFORM_NVRTC to it"
    )]
    UnknownArch {
        /// Version of the compiler.
        compiler: CudaVersion,
        /// The architecture wanted.
        arch: String,
    },
    /// A kernel did not compile. A defect of this crate, or knobs the kernel does not take.
    #[error(
        "variant `{variant}` does not compile for {arch} with NVRTC {compiler} and {options}; please \
         report this log:\n{log}"
    )]
    Compile {
        /// The variant.
        variant: String,
        /// The architecture.
        arch: String,
        /// Version of the compiler.
        compiler: CudaVersion,
        /// The options, space separated.
        options: String,
        /// What the compiler printed.
        log: String,
    },
    /// A compiled kernel that the driver refuses.
    #[error(
        "the driver (CUDA {driver}) does not load variant `{variant}` compiled by NVRTC {compiler}: \
         {source}; NVRTC must not be newer than the driver: update the driver or set MSDEFORM_NVRTC \
         to an older libnvrtc.so"
    )]
    Load {
        /// The variant.
        variant: &'static str,
        /// What the driver supports.
        driver: CudaVersion,
        /// What compiled the kernel.
        compiler: CudaVersion,
        /// What the driver said.
        source: DriverError,
    },
    /// A kernel that could not be launched.
    #[error("launching variant `{variant}` failed: {source}")]
    Launch {
        /// The variant.
        variant: &'static str,
        /// What the driver said.
        source: DriverError,
    },
    /// The GPU has faulted: nothing in this process can use it any more.
    #[error(transparent)]
    ContextLost(Box<ContextLost>),
    /// CUDA was in use when this process was forked off another one.
    #[error(
        "this process was forked off one that had used CUDA, which does not survive that; start it with \
         the start method `spawn` or `forkserver`, or use CUDA only after the fork"
    )]
    Forked,
    /// Not enough memory on the GPU.
    #[error(
        "the GPU has no room for {bytes} more bytes; free memory there, use a smaller batch, or split \
         the queries"
    )]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A null pointer for a tensor that is not empty.
    #[error("the device pointer of `{tensor}` is null")]
    NullPointer {
        /// The tensor.
        tensor: &'static str,
    },
    /// A buffer that is only to be read, for a tensor that the call writes.
    #[error("the call writes `{tensor}`; pass it with `Argument::write`")]
    ReadOnly {
        /// The tensor.
        tensor: &'static str,
    },
    /// Pointers that need another kernel than the plan's, which is not loaded yet, in a stream that is being captured.
    #[error(
        "a tensor is less aligned than the plan's kernel needs it, and `{variant}`, which takes it, cannot be loaded while a \
         graph is captured; launch the plan once with such tensors before the capture, or align them to 16 bytes"
    )]
    UncompiledInCapture {
        /// The variant that takes over.
        variant: &'static str,
    },
    /// A pointer to host memory.
    #[error(
        "`{tensor}` is at {address:#x}, which is not device memory; copy the tensor to the GPU first"
    )]
    HostPointer {
        /// The tensor.
        tensor: &'static str,
        /// The pointer.
        address: u64,
    },
    /// A tensor or stream of another GPU than the plan's.
    #[error(
        "`{what}` belongs to CUDA device {found}, the plan to device {expected}; move one of them"
    )]
    WrongDevice {
        /// The tensor, or the stream.
        what: &'static str,
        /// The plan's device.
        expected: usize,
        /// The other device.
        found: usize,
    },
    /// A stream of a context that is not the device's primary one.
    #[error(
        "the stream belongs to another CUDA context than the plan; use a stream of device {device}'s \
         primary context, as the CUDA runtime, PyTorch and cudarc make them"
    )]
    WrongContext {
        /// The plan's device.
        device: usize,
    },
    /// A pointer that is not a multiple of the element size.
    #[error("`{tensor}` is at {address:#x}, not a multiple of its element size of {element_bytes}")]
    MisalignedElement {
        /// The tensor.
        tensor: &'static str,
        /// The pointer.
        address: u64,
        /// The element size.
        element_bytes: usize,
    },
    /// A workspace whose parts would not be aligned.
    #[error(
        "the workspace is at {address:#x}, not a multiple of {alignment}; allocate it on its own, or \
         let the plan own it"
    )]
    MisalignedWorkspace {
        /// The pointer.
        address: u64,
        /// What it must be a multiple of.
        alignment: usize,
    },
    /// An allocation that ends before the tensor does.
    #[error("`{tensor}` needs {required} bytes, its allocation has {found}; give a larger buffer")]
    BufferTooSmall {
        /// The tensor.
        tensor: &'static str,
        /// Bytes the problem implies.
        required: usize,
        /// Bytes there are.
        found: usize,
    },
    /// A knob that the variant does not have, or a value it does not take.
    #[error("variant `{variant}` takes {known}, not {name}={value}")]
    Knob {
        /// The variant.
        variant: &'static str,
        /// The knob as given.
        name: String,
        /// The value as given.
        value: i64,
        /// What it takes.
        known: String,
    },
    /// A description of the problem, a size or a variant that does not fit.
    #[error(transparent)]
    Problem(#[from] msdeform::Error),
    /// Any other failure of the driver.
    #[error(transparent)]
    Driver(DriverError),
}

impl From<DriverError> for Error {
    /// Every failure of the driver comes through here, so that none that means more is taken for a plain one.
    fn from(source: DriverError) -> Self {
        /// What a driver answers that was initialised before a fork.
        const NOT_INITIALIZED: u32 = 3;
        if source.is_fault() {
            return Self::ContextLost(Box::new(lost_context(source)));
        }
        if source.code == NOT_INITIALIZED && was_initialised_before_a_fork() {
            return Self::Forked;
        }
        Self::Driver(source)
    }
}

impl Error {
    /// A variant's launch that failed. A fault stays one: the launch that hears of it may not be its cause.
    pub(crate) fn in_launch_of(self, variant: &'static str) -> Self {
        match self {
            Self::Driver(source) => Self::Launch { variant, source },
            other => other,
        }
    }
}

/// The result of anything that may touch the GPU.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    /// What a user sees must say what is wrong and what to do about it.
    #[test]
    fn every_message_names_the_cause_and_the_remedy() {
        let refused = DriverError {
            call: "cuLaunchKernel",
            code: 1,
            name: "CUDA_ERROR_INVALID_VALUE".to_owned(),
            description: "invalid argument".to_owned(),
        };
        let version = |major, minor| CudaVersion { major, minor };
        let cases: Vec<(Error, &[&str])> = vec![
            (Error::MissingDriver, &["no CUDA driver", "install the NVIDIA driver", "CPU backend"]),
            (
                Error::OldDriver { found: version(11, 8), required: version(12, 0) },
                &["11.8", "12.0", "update the NVIDIA driver"],
            ),
            (Error::NoDevice { ordinal: 3, count: 2 }, &["device 3", "sees 2", "nvidia-smi"]),
            (
                Error::OldGpu { name: "Tesla V100".to_owned(), major: 7, minor: 0 },
                &["Tesla V100", "7.0", "8.0", "CPU backend"],
            ),
            (
                Error::MissingNvrtc { searched: "here; there".to_owned() },
                &["pip install nvidia-cuda-nvrtc", "MSDEFORM_NVRTC", "here; there"],
            ),
            (
                Error::UnknownArch { compiler: version(12, 0), arch: "sm_120a".to_owned() },
                &["12.0", "sm_120a", "pip install -U"],
            ),
            (
                Error::Load {
                    variant: "fwd_general",
                    driver: version(12, 4),
                    compiler: version(13, 0),
                    source: refused.clone(),
                },
                &["fwd_general", "12.4", "13.0", "update the driver", "MSDEFORM_NVRTC"],
            ),
            (
                Error::Launch { variant: "fwd_general", source: refused },
                &["fwd_general", "cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE", "invalid argument"],
            ),
            (Error::Forked, &["forked", "`spawn`", "after the fork"]),
            (Error::OutOfMemory { bytes: 123 }, &["123", "smaller batch"]),
            (Error::NullPointer { tensor: "value" }, &["value", "null"]),
            (Error::ReadOnly { tensor: "output" }, &["output", "Argument::write"]),
            (
                Error::UncompiledInCapture { variant: "fwd_general" },
                &["fwd_general", "before the capture", "16 bytes"],
            ),
            (Error::HostPointer { tensor: "value", address: 0xabc0 }, &["value", "0xabc0", "copy"]),
            (
                Error::WrongDevice { what: "output", expected: 0, found: 1 },
                &["output", "device 1", "device 0"],
            ),
            (
                Error::MisalignedWorkspace { address: 0xabc1, alignment: 256 },
                &["0xabc1", "256", "let the plan own it"],
            ),
            (
                Error::BufferTooSmall { tensor: "output", required: 8, found: 4 },
                &["output", "8", "4", "larger buffer"],
            ),
        ];
        for (error, words) in cases {
            let message = error.to_string();
            for word in words {
                assert!(message.contains(word), "`{word}` is not in: {message}");
            }
        }
    }

    fn fault(code: u32) -> DriverError {
        DriverError {
            call: "cuMemAlloc",
            code,
            name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
            description: "an illegal memory access was encountered".to_owned(),
        }
    }

    fn launched(entry: &'static str, queries: u32) -> Launched {
        Launched {
            entry,
            variant: "bwd_original",
            batch: 2,
            queries,
            heads: 8,
            channels: 32,
            levels: 4,
            samples: 16,
            dtype: msdeform::DType::F16,
            sampling_dtype: msdeform::DType::F16,
        }
    }

    fn message(cause: Cause) -> String {
        let lost = ContextLost { source: fault(700), device: Some(1), cause };
        Error::ContextLost(Box::new(lost)).to_string()
    }

    #[test]
    fn faults_end_the_context_and_other_errors_do_not() {
        // Named as the driver numbers them; what a launch or an allocation refuses is not among them.
        use cudarc::driver::sys::CUresult as R;
        for code in [
            R::CUDA_ERROR_ECC_UNCORRECTABLE,
            R::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            R::CUDA_ERROR_CONTAINED,
            R::CUDA_ERROR_ILLEGAL_ADDRESS,
            R::CUDA_ERROR_LAUNCH_TIMEOUT,
            R::CUDA_ERROR_ASSERT,
            R::CUDA_ERROR_HARDWARE_STACK_ERROR,
            R::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            R::CUDA_ERROR_MISALIGNED_ADDRESS,
            R::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            R::CUDA_ERROR_INVALID_PC,
            R::CUDA_ERROR_LAUNCH_FAILED,
            R::CUDA_ERROR_TENSOR_MEMORY_LEAK,
            R::CUDA_ERROR_EXTERNAL_DEVICE,
        ] {
            let error = Error::from(fault(code as u32));
            assert!(matches!(error, Error::ContextLost(_)), "{code:?}: {error}");
            let error = Error::from(fault(code as u32)).in_launch_of("fwd_general");
            assert!(matches!(error, Error::ContextLost(_)), "{code:?}: {error}");
        }
        for code in [
            R::CUDA_ERROR_INVALID_VALUE,
            R::CUDA_ERROR_OUT_OF_MEMORY,
            R::CUDA_ERROR_NOT_INITIALIZED,
            R::CUDA_ERROR_INVALID_HANDLE,
            R::CUDA_ERROR_NOT_READY,
            R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        ] {
            let error = Error::from(fault(code as u32));
            assert!(matches!(error, Error::Driver(_)), "{code:?}: {error}");
            let error = Error::from(fault(code as u32)).in_launch_of("fwd_general");
            assert!(matches!(error, Error::Launch { variant: "fwd_general", .. }), "{code:?}");
        }
    }

    #[test]
    fn a_fault_names_its_launch_where_that_is_known_and_else_the_suspects() {
        let known = message(Cause::Exactly(launched("bwd_original", 300)));
        for words in ["device 1", "ILLEGAL_ADDRESS", "in `bwd_original` (N=2", "must be restarted"]
        {
            assert!(known.contains(words), "`{words}` is not in: {known}");
        }
        assert!(!known.contains("another library") && !known.contains("BLOCKING"), "{known}");

        let several = (1..=10).map(|queries| launched("bwd_original_sum", queries)).collect();
        let several = message(Cause::OneOf(several));
        for words in [
            "reported by cuMemAlloc",
            "perhaps of another library",
            "newest first: `bwd_original_sum` of `bwd_original` (N=2 M=8 D=32 Lq=1 ",
            "Lq=8 ",
            " and 2 before. ",
            "CUDA_LAUNCH_BLOCKING=1",
            "this process must be restarted",
        ] {
            assert!(several.contains(words), "`{words}` is not in: {several}");
        }
        assert!(!several.contains("Lq=9"), "{several}");

        let one = message(Cause::OneOf(vec![launched("bwd_original", 5)]));
        assert!(
            one.contains("newest first: `bwd_original` (N=2") && !one.contains("before"),
            "{one}"
        );
        let unknown = message(Cause::OneOf(Vec::new()));
        assert!(unknown.contains("No launch of msdeform is known"), "{unknown}");
        assert!(unknown.contains("another library"), "{unknown}");
    }
}
