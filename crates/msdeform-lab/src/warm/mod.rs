//! Compiling ahead, into the cache that every process of a user shares.

mod pack;
mod target;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use msdeform_cuda::{CodeOrigin, CodeStore};
use msdeform_files::FileError;
use serde::Serialize;

use crate::models::Specialisation;

pub use pack::{PACKED_ARCHITECTURES, pack_groups, packed_kernels};
pub use target::Target;

/// Why nothing can be compiled ahead. Errors of single kernels are in [`Warmed::failed`].
#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    #[error(
        "compiled kernels are kept nowhere: MSDEFORM_CACHE_DIR is empty, or this user has no cache folder; set it to a \
         folder that outlives this process"
    )]
    NoCache,
    #[error("compiled kernels cannot be kept; set MSDEFORM_CACHE_DIR to another folder")]
    Cache(#[from] FileError),
    /// An architecture that nothing is known about.
    #[error("`{name}` is no architecture that kernels are known for; known: {}", known.join(", "))]
    UnknownArchitecture { name: String, known: Vec<String> },
    #[error(
        "{0}. An architecture instead of a GPU, such as sm_90, compiles for one that is not here"
    )]
    Gpu(Box<msdeform_cuda::Error>),
    /// No compiler, or none that knows the architecture.
    #[error(transparent)]
    Compiler(Box<msdeform_cuda::Error>),
}

impl From<msdeform_cuda::Error> for WarmError {
    fn from(error: msdeform_cuda::Error) -> Self {
        Self::Compiler(Box::new(error))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Warmed {
    pub kernels: usize,
    pub compiled: usize,
    /// Those that were there already, in the cache or in a kernel pack.
    pub found: usize,
    /// Those that did not compile, with the errors of the compiler.
    pub failed: Vec<FailedKernel>,
    /// Bytes of what is there now.
    pub bytes: u64,
    pub seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailedKernel {
    pub variant: &'static str,
    pub unit: String,
    pub error: String,
}

/// Compiles kernels on some threads; `progress` hears how many are done and returns whether to go on. Stopped at any moment, what
/// was compiled so far is kept, and nothing else.
pub fn warm(
    target: &Target,
    wanted: &[Specialisation],
    threads: usize,
    progress: &(dyn Fn(usize) -> bool + Sync),
) -> Result<Warmed, WarmError> {
    let (code, arch) = (target.code(), target.arch.as_str());
    if code.cache().folder().is_none() {
        return Err(WarmError::NoCache);
    }
    code.nvrtc()?.target_for(arch)?;
    let start = Instant::now();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let state = Mutex::new((Warmed { kernels: wanted.len(), ..Warmed::default() }, None));
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, wanted.len().max(1)) {
            scope.spawn(|| {
                while let Some(kernel) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = one(code, arch, kernel);
                    let (warmed, refused) = &mut *lock();
                    match outcome {
                        Ok((origin, bytes)) => {
                            warmed.bytes += bytes;
                            match origin {
                                CodeOrigin::Compiled => warmed.compiled += 1,
                                CodeOrigin::Disk | CodeOrigin::Pack => warmed.found += 1,
                            }
                        }
                        Err(WarmError::Compiler(error)) => warmed.failed.push(FailedKernel {
                            variant: kernel.variant.spec.id,
                            unit: kernel.name(),
                            error: error.to_string(),
                        }),
                        Err(other) => {
                            // A full disk does not get emptier: the others stop as well.
                            next.store(wanted.len(), Ordering::Relaxed);
                            *refused = Some(other);
                        }
                    }
                    if !progress(done.fetch_add(1, Ordering::Relaxed) + 1) {
                        next.store(wanted.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (warmed, refused) = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match refused {
        Some(refused) => Err(refused),
        None => Ok(Warmed { seconds: start.elapsed().as_secs_f64(), ..warmed }),
    }
}

fn one(
    code: &CodeStore,
    arch: &str,
    kernel: &Specialisation,
) -> Result<(CodeOrigin, u64), WarmError> {
    let found = code.obtain(kernel.variant, &kernel.unit, arch)?;
    code.keep(&found)?;
    Ok((found.origin, found.compiled.cubin.len() as u64))
}

#[cfg(test)]
mod tests {
    use msdeform::{ATTENTION, DType, Direction, Mode};
    use msdeform_cuda::DeviceProps;
    use msdeform_cuda::DiskCache;
    use msdeform_cuda::nvrtc::Nvrtc;

    use super::*;
    use crate::models::{ModelShape, Scope, USUAL, specialisations_of};

    /// The forward kernels of a small model: two or three.
    fn wanted() -> Vec<Specialisation> {
        let shape = ModelShape { heads: 2, channels: 8, points: &[2], queries: &[10], ..USUAL };
        let scope = Scope {
            dtypes: vec![DType::F32],
            directions: vec![Direction::Forward],
            modes: vec![Mode::Fast],
            ..Scope::default()
        };
        specialisations_of(&[DeviceProps::h200()], shape.problems(&ATTENTION), &scope)
    }

    fn sm_90(cache: DiskCache) -> Target {
        Target::of_architecture("sm_90", cache).unwrap()
    }

    #[test]
    fn what_was_compiled_ahead_is_found_by_the_next_process() {
        if Nvrtc::for_tests().is_none() {
            return;
        }
        let (folder, wanted) = (tempfile::tempdir().unwrap(), wanted());
        let process = || sm_90(DiskCache::in_folder(folder.path()));
        let heard = AtomicUsize::new(0);
        let progress = |done: usize| heard.fetch_max(done, Ordering::Relaxed) <= wanted.len();
        let first = warm(&process(), &wanted, 4, &progress).unwrap();
        assert_eq!((first.compiled, first.found, first.failed.len()), (wanted.len(), 0, 0));
        assert_eq!(heard.into_inner(), wanted.len());
        assert!(first.bytes > 1000 && first.seconds > 0.0, "{first:?}");
        let stopped = warm(&process(), &wanted, 1, &|_| false).unwrap();
        assert_eq!((stopped.found, stopped.compiled), (1, 0), "it was told to stop");
        let second = warm(&process(), &wanted, 1, &|_| true).unwrap();
        assert_eq!((second.compiled, second.found), (0, wanted.len()));
        assert_eq!(second.bytes, first.bytes);
        // A process that needs them compiles nothing.
        let later = process();
        for kernel in &wanted {
            let code = later.code().obtain(kernel.variant, &kernel.unit, &later.arch).unwrap();
            assert_eq!(code.origin, CodeOrigin::Disk);
        }
        assert_eq!(later.code().counts().compiled, 0);
    }

    #[test]
    fn a_missing_cache_and_an_unknown_architecture_are_refused_first() {
        let error = warm(&sm_90(DiskCache::nowhere()), &wanted(), 1, &|_| true).unwrap_err();
        assert!(matches!(error, WarmError::NoCache), "{error}");
        let error = Target::of_architecture("sm_770", DiskCache::nowhere()).unwrap_err();
        assert!(error.to_string().contains("sm_770") && error.to_string().contains("sm_120"));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error() {
        if Nvrtc::for_tests().is_none() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let target = sm_90(DiskCache::in_folder(file.join("below")));
        let error = warm(&target, &wanted()[..1], 2, &|_| true).unwrap_err();
        assert!(matches!(error, WarmError::Cache(_)), "{error}");
        assert!(error.to_string().contains("MSDEFORM_CACHE_DIR"), "{error}");
    }
}
