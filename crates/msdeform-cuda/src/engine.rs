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
use crate::variants::{Call, Configuration, Unit, Variant};

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
    /// By variant, step and macros: all else that determines the code is the same for one engine, and hashing
    /// the sources for every plan would cost more than the rest of making it.
    loaded: Mutex<HashMap<(&'static str, Unit), Kernel>>,
    /// Relaxed, like the next: counters that nobody concludes anything from.
    compiled: AtomicU64,
    read_from_disk: AtomicU64,
    tuning: Tuning,
}

/// A kernel, loaded, and what it takes.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub step: &'static str,
    pub entry: String,
    pub function: Function,
    pub resources: KernelResources,
}

/// A kernel, compiled.
struct Obtained {
    compiled: Compiled,
    recipe: Recipe,
    key: Key,
    is_from_disk: bool,
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

    /// The kernels of a configuration in the order they are launched: from this process, from disk, or compiled, side
    /// by side.
    pub(crate) fn kernels(
        &self,
        variant: &'static dyn Variant,
        configuration: &Configuration,
        call: &Call<'_>,
    ) -> Result<Vec<Kernel>> {
        let id = variant.spec().id;
        let units: Vec<(&str, Unit)> =
            configuration.units(call).into_iter().map(|unit| (id, unit)).collect();
        let mut kernels: Vec<Option<Kernel>> = {
            let loaded = self.lock_loaded();
            units.iter().map(|unit| loaded.get(unit).cloned()).collect()
        };
        let missing: Vec<usize> = (0..units.len()).filter(|&at| kernels[at].is_none()).collect();
        // Not under the lock: compiling takes long, and doing it twice is harmless.
        let obtained: Vec<Result<Obtained>> = match missing[..] {
            [only] => vec![self.obtain(variant, &units[only].1)],
            _ => std::thread::scope(|scope| {
                let wanted = missing.iter().map(|&at| &units[at].1);
                let obtain = |unit| scope.spawn(move || self.obtain(variant, unit));
                let threads: Vec<_> = wanted.map(obtain).collect();
                let joined = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                threads.into_iter().map(joined).collect()
            }),
        };
        for (&at, obtained) in missing.iter().zip(obtained) {
            let kernel = self.load(variant, &units[at].1, obtained?)?;
            self.lock_loaded().insert(units[at].clone(), kernel.clone());
            kernels[at] = Some(kernel);
        }
        Ok(kernels.into_iter().flatten().collect())
    }

    /// What a kernel is compiled to: from disk, or by NVRTC.
    fn obtain(&self, variant: &'static dyn Variant, unit: &Unit) -> Result<Obtained> {
        let nvrtc = self.nvrtc()?;
        let target = nvrtc.target_for(&self.inner.context.props().arch())?;
        let recipe = Recipe::new(variant, &target, &unit.defines);
        let key = recipe.key(nvrtc.version());
        let (compiled, is_from_disk) = match self.inner.cache.load(&key) {
            Some(found) => (found, true),
            None => (self.compile(&recipe)?, false),
        };
        Ok(Obtained { compiled, recipe, key, is_from_disk })
    }

    fn compile(&self, recipe: &Recipe) -> Result<Compiled> {
        let compiled = recipe.compile(self.nvrtc()?)?;
        self.inner.compiled.fetch_add(1, Ordering::Relaxed);
        Ok(compiled)
    }

    fn load(
        &self,
        variant: &'static dyn Variant,
        unit: &Unit,
        obtained: Obtained,
    ) -> Result<Kernel> {
        let Obtained { mut compiled, recipe, key, mut is_from_disk } = obtained;
        let module = match self.load_module(variant, &compiled) {
            // Says nothing about the entry.
            Err(lost @ (Error::ContextLost(_) | Error::Forked)) => return Err(lost),
            // Whole, but the driver refuses it: made by something else, or for another driver.
            Err(_) if is_from_disk => {
                self.inner.cache.remove(&key);
                (compiled, is_from_disk) = (self.compile(&recipe)?, false);
                self.load_module(variant, &compiled)?
            }
            loaded => loaded?,
        };
        if is_from_disk {
            self.inner.read_from_disk.fetch_add(1, Ordering::Relaxed);
        } else {
            self.inner.cache.store(&key, &compiled);
        }
        let entry = entry_name(variant.spec().id, unit.step);
        let function = module.function(&entry)?;
        let resources = KernelResources::parse(&compiled.log, &entry).unwrap_or_default();
        Ok(Kernel { step: unit.step, entry, function, resources })
    }

    fn load_module(
        &self,
        variant: &'static dyn Variant,
        compiled: &Compiled,
    ) -> Result<Arc<Module>> {
        let (variant, compiler) = (variant.spec().id, self.nvrtc()?.version());
        Module::load(&self.inner.context, &compiled.cubin).map_err(|error| match error {
            Error::Driver(source) => {
                Error::Load { variant, driver: self.inner.context.driver(), compiler, source }
            }
            other => other,
        })
    }

    fn lock_loaded(&self) -> MutexGuard<'_, HashMap<(&'static str, Unit), Kernel>> {
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
