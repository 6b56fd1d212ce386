//! What can go wrong between a call and the GPU, and what to do about it.

use std::fmt;
use std::path::PathBuf;

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
    #[must_use]
    pub const fn from_driver(number: i32) -> Self {
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
    /// What the driver says about it.
    pub description: String,
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
    /// A kernel that could not be launched, or the late report of an earlier fault on the device.
    #[error("launching variant `{variant}` failed: {source}")]
    Launch {
        /// The variant.
        variant: &'static str,
        /// What the driver said.
        source: DriverError,
    },
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
    Driver(#[from] DriverError),
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
            code: 700,
            name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
            description: "an illegal memory access was encountered".to_owned(),
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
                &["fwd_general", "cuLaunchKernel", "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory"],
            ),
            (Error::OutOfMemory { bytes: 123 }, &["123", "smaller batch"]),
            (Error::NullPointer { tensor: "value" }, &["value", "null"]),
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
}
