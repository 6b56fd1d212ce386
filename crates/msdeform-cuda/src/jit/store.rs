//! Where machine code comes from: the cache on disk, or NVRTC. Needs no GPU, only to know for which one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use msdeform_files::FileError;

use super::{DiskCache, Key, Recipe};
use crate::error::{CudaVersion, Result};
use crate::nvrtc::{Compiled, Nvrtc};
use crate::variants::{Unit, Variant};

/// The cubins that a process has or can make.
#[derive(Debug)]
pub struct CodeStore {
    cache: DiskCache,
    /// What the compiler must not be newer than, where there is a driver.
    driver: Option<CudaVersion>,
    /// Looked for when the first kernel has to be compiled.
    nvrtc: OnceLock<Result<Nvrtc>>,
    /// Relaxed, like the next: counters that nobody concludes anything from.
    compiled: AtomicU64,
    read_from_disk: AtomicU64,
}

/// Where a kernel came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeOrigin {
    /// NVRTC compiled it now.
    Compiled,
    /// The cache on disk had it.
    Disk,
}

/// A kernel as machine code.
#[derive(Clone, Debug)]
pub struct Code {
    /// The cubin and what the compiler said about it.
    pub compiled: Compiled,
    /// Where it came from.
    pub origin: CodeOrigin,
    /// The compiler that made it.
    pub compiler: CudaVersion,
    recipe: Recipe,
    key: Key,
}

/// Where kernels came from so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitCounts {
    /// Compiled by NVRTC.
    pub compiled: u64,
    /// Read from the cache on disk.
    pub read_from_disk: u64,
}

impl CodeStore {
    /// What a cache has and NVRTC can make for a driver; `None` where there is no driver.
    #[must_use]
    pub fn new(cache: DiskCache, driver: Option<CudaVersion>) -> Self {
        Self {
            cache,
            driver,
            nvrtc: OnceLock::new(),
            compiled: AtomicU64::new(0),
            read_from_disk: AtomicU64::new(0),
        }
    }

    /// The cache on disk.
    #[must_use]
    pub const fn cache(&self) -> &DiskCache {
        &self.cache
    }

    /// The compiler, found on the first call.
    ///
    /// # Errors
    /// [`Error::MissingNvrtc`](crate::Error::MissingNvrtc) or [`Error::BadNvrtc`](crate::Error::BadNvrtc).
    pub fn nvrtc(&self) -> Result<&Nvrtc> {
        let find = || Nvrtc::find(self.driver);
        self.nvrtc.get_or_init(find).as_ref().map_err(Clone::clone)
    }

    /// Where kernels came from so far.
    #[must_use]
    pub fn counts(&self) -> JitCounts {
        JitCounts {
            compiled: self.compiled.load(Ordering::Relaxed),
            read_from_disk: self.read_from_disk.load(Ordering::Relaxed),
        }
    }

    /// What a kernel is compiled to for an architecture (such as `sm_90a`).
    ///
    /// # Errors
    /// No compiler and nothing without one, an architecture it does not know, [`crate::Error::Compile`].
    pub fn obtain(&self, variant: &dyn Variant, unit: &Unit, arch: &str) -> Result<Code> {
        let nvrtc = self.nvrtc()?;
        let recipe = Recipe::new(variant, &nvrtc.target_for(arch)?, &unit.defines);
        let (key, compiler) = (recipe.key(nvrtc.version()), nvrtc.version());
        let (compiled, origin) = match self.cache.load(&key) {
            Some(found) => (found, CodeOrigin::Disk),
            None => (self.compile(&recipe)?, CodeOrigin::Compiled),
        };
        Ok(Code { compiled, origin, compiler, recipe, key })
    }

    /// The same for code that a driver refused although it is whole: made by something else, or for another driver.
    /// `None` where it was compiled just now and would be no other.
    pub(crate) fn replace(&self, refused: &Code) -> Option<Result<Code>> {
        if refused.origin == CodeOrigin::Compiled {
            return None;
        }
        self.cache.remove(&refused.key);
        let compiled = self.compile(&refused.recipe);
        Some(compiled.map(|compiled| Code {
            compiled,
            origin: CodeOrigin::Compiled,
            ..refused.clone()
        }))
    }

    /// Keeps what was compiled for the next process, and counts what was not.
    ///
    /// # Errors
    /// Why it is not kept; the code can be used all the same.
    pub fn keep(&self, code: &Code) -> std::result::Result<(), FileError> {
        match code.origin {
            CodeOrigin::Disk => {
                self.read_from_disk.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            CodeOrigin::Compiled => self.cache.try_store(&code.key, &code.compiled),
        }
    }

    fn compile(&self, recipe: &Recipe) -> Result<Compiled> {
        let compiled = recipe.compile(self.nvrtc()?)?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        Ok(compiled)
    }
}
