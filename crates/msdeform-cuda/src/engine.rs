//! One GPU, its compiler and the code loaded so far.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use msdeform_tuning::{Source, Tuning};

use crate::driver::{Context, Function, Module};
use crate::error::{Error, Result};
use crate::jit::{DiskCache, Key, Recipe};
use crate::nvrtc::{Compiled, KernelResources, Nvrtc};
use crate::pipeline::entry_name;
use crate::tuning;
use crate::variants::{Call, Configuration, Variant};

/// One GPU, ready to make plans. Cloning is cheap and shares everything; use one per device.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    cache: DiskCache,
    /// Looked for when the first kernel is needed, so that an engine can be opened without.
    nvrtc: OnceLock<Result<Nvrtc>>,
    /// By variant and macros: all else that determines the code is the same for one engine, and hashing
    /// the sources for every plan would cost more than the rest of making it.
    loaded: Mutex<HashMap<(&'static str, Vec<String>), Code>>,
    /// Relaxed, like the next: counters that nobody concludes anything from.
    compiled: AtomicU64,
    read_from_disk: AtomicU64,
    tuning: Tuning,
}

/// The kernels of a variant, loaded.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    variant: &'static str,
    module: Arc<Module>,
    /// The compiler's, for what each kernel takes.
    log: Arc<str>,
}

/// A loaded kernel and what it takes.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub function: Function,
    pub resources: KernelResources,
}

impl Code {
    /// The kernel of a step of the variant's pipeline, with its name.
    pub(crate) fn kernel(&self, step: &str) -> Result<(String, Kernel)> {
        let entry = entry_name(self.variant, step);
        let function = self.module.function(&entry)?;
        let resources = KernelResources::parse(&self.log, &entry).unwrap_or_default();
        Ok((entry, Kernel { function, resources }))
    }
}

/// Where the kernels of an engine came from so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitCounts {
    /// Compiled by NVRTC.
    pub compiled: u64,
    /// Read from the cache on disk.
    pub read_from_disk: u64,
}

impl Engine {
    /// Opens device `ordinal` with the user's cache.
    ///
    /// # Errors
    /// No driver, an old one, no such device or one that is too old; each says what to do.
    pub fn new(ordinal: usize) -> Result<Self> {
        Self::with_cache(ordinal, DiskCache::of_user())
    }

    /// Opens device `ordinal` with a given cache and the user's tuning file.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_cache(ordinal: usize, cache: DiskCache) -> Result<Self> {
        Self::with_tuning(ordinal, cache, None)
    }

    /// Opens device `ordinal` with a given cache and a given tuning file; `None` is what the environment says.
    ///
    /// # Errors
    /// As [`Engine::new`]; never because of the tuning file, see [`Engine::tuning`].
    pub fn with_tuning(ordinal: usize, cache: DiskCache, tuning: Option<&Source>) -> Result<Self> {
        let context = Context::new(ordinal)?;
        let tuning = tuning::load(context.props(), tuning);
        let inner = Inner {
            context,
            cache,
            nvrtc: OnceLock::new(),
            loaded: Mutex::default(),
            compiled: AtomicU64::new(0),
            read_from_disk: AtomicU64::new(0),
            tuning,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device's context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// What was measured on this machine about which variant to use, read when the engine was opened. A
    /// file that is not used says why ([`Tuning::ignored`]) and changes nothing else.
    #[must_use]
    pub fn tuning(&self) -> &Tuning {
        &self.inner.tuning
    }

    /// The compiler, found on the first call.
    ///
    /// # Errors
    /// [`Error::MissingNvrtc`] or [`Error::BadNvrtc`].
    pub fn nvrtc(&self) -> Result<&Nvrtc> {
        let find = || Nvrtc::find(Some(self.inner.context.driver()));
        self.inner.nvrtc.get_or_init(find).as_ref().map_err(Clone::clone)
    }

    /// Where kernels came from so far.
    #[must_use]
    pub fn jit_counts(&self) -> JitCounts {
        JitCounts {
            compiled: self.inner.compiled.load(Ordering::Relaxed),
            read_from_disk: self.inner.read_from_disk.load(Ordering::Relaxed),
        }
    }

    /// The code of a configuration: from this process, from disk, or compiled.
    pub(crate) fn code(
        &self,
        variant: &'static dyn Variant,
        configuration: &Configuration,
        call: &Call<'_>,
    ) -> Result<Code> {
        let name = (variant.spec().id, configuration.defines(call));
        if let Some(code) = self.lock_loaded().get(&name) {
            return Ok(code.clone());
        }
        let nvrtc = self.nvrtc()?;
        let target = nvrtc.target_for(&self.inner.context.props().arch())?;
        let recipe = Recipe::new(variant, &target, &name.1);
        let key = recipe.key(nvrtc.version());
        // Not under the lock: compiling takes long, and doing it twice is harmless.
        let code = match self.inner.cache.load(&key).map(|found| self.load(variant, &found)) {
            Some(Ok(code)) => {
                self.inner.read_from_disk.fetch_add(1, Ordering::Relaxed);
                code
            }
            // Says nothing about the entry.
            Some(Err(lost @ (Error::ContextLost(_) | Error::Forked))) => return Err(lost),
            // Whole, but the driver refuses it: made by something else, or for another driver.
            Some(Err(_)) => {
                self.inner.cache.remove(&key);
                self.compile(variant, &recipe, &key)?
            }
            None => self.compile(variant, &recipe, &key)?,
        };
        Ok(self.lock_loaded().entry(name).or_insert(code).clone())
    }

    fn compile(&self, variant: &'static dyn Variant, recipe: &Recipe, key: &Key) -> Result<Code> {
        let compiled = recipe.compile(self.nvrtc()?)?;
        self.inner.compiled.fetch_add(1, Ordering::Relaxed);
        let code = self.load(variant, &compiled)?;
        self.inner.cache.store(key, &compiled);
        Ok(code)
    }

    fn load(&self, variant: &'static dyn Variant, compiled: &Compiled) -> Result<Code> {
        let variant = variant.spec().id;
        let compiler = self.nvrtc()?.version();
        let load = Module::load(&self.inner.context, &compiled.cubin);
        let module = load.map_err(|error| match error {
            Error::Driver(source) => {
                Error::Load { variant, driver: self.inner.context.driver(), compiler, source }
            }
            other => other,
        })?;
        Ok(Code { variant, module, log: compiled.log.as_str().into() })
    }

    fn lock_loaded(&self) -> MutexGuard<'_, HashMap<(&'static str, Vec<String>), Code>> {
        // A thread that panicked elsewhere left the map whole.
        self.inner.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("context", &self.context)
            .field("nvrtc", &self.nvrtc.get())
            .finish_non_exhaustive()
    }
}
