//! One GPU, its compiler and the code loaded so far.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ahead::Compiler;
use crate::driver::{Context, Function, Module, driver_version};
use crate::error::{Error, Result};
use crate::jit::{Code, CodeStore, DiskCache};
use crate::nvrtc::KernelResources;
use crate::pipeline::entry_name;
use crate::tuning::{self, Source, Tuning};
use crate::variants::{Call, Configuration, Unit, Variant};

/// One GPU, ready to make plans. Cloning is cheap and shares everything; use one per device.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    /// Looks for NVRTC when the first kernel is needed, so that an engine can be opened without.
    compiler: Arc<Compiler>,
    /// By variant, step and macros: all else that determines the code is the same for one engine, and hashing
    /// the sources for every plan would cost more than the rest of making it.
    loaded: Mutex<HashMap<(&'static str, Unit), Kernel>>,
}

/// A kernel, loaded, and what it takes.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub step: &'static str,
    pub entry: String,
    pub function: Function,
    pub resources: KernelResources,
}

/// The engines that a whole process shares, by device.
static SHARED: Mutex<BTreeMap<usize, Engine>> = Mutex::new(BTreeMap::new());

impl Engine {
    /// The engine of a device that the whole process shares. It is opened once and never closed, because the driver may be
    /// unloaded before us at exit. The call that opens the engine passes it to `opened`, outside of locks.
    ///
    /// # Errors
    /// As [`Engine::new`]; in a forked process.
    pub fn shared(ordinal: usize, opened: impl FnOnce(&Self)) -> Result<Self> {
        // In a forked process an error, and before the lock, which a thread of the parent may have held.
        driver_version()?;
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = shared.get(&ordinal) {
            return Ok(engine.clone());
        }
        let engine = Self::new(ordinal)?;
        shared.insert(ordinal, engine.clone());
        drop(shared);
        opened(&engine);
        Ok(engine)
    }

    /// All engines that are shared. None while another thread opens one and, in a forked process, if one did then.
    #[must_use]
    pub fn all_shared() -> Vec<Self> {
        SHARED.try_lock().map_or_else(|_| Vec::new(), |shared| shared.values().cloned().collect())
    }

    /// Opens device `ordinal` with the user's cache.
    ///
    /// # Errors
    /// No driver, an old one, no such device or one that is too old; each error names the remedy.
    pub fn new(ordinal: usize) -> Result<Self> {
        Self::with_cache(ordinal, DiskCache::of_user())
    }

    /// Opens device `ordinal` with a given cache and the user's tuning file.
    pub fn with_cache(ordinal: usize, cache: DiskCache) -> Result<Self> {
        Self::with_tuning(ordinal, cache, None)
    }

    /// Opens device `ordinal` with a given cache and a given tuning file; `None` follows the environment.
    ///
    /// # Errors
    /// As [`Engine::new`]; never because of the tuning file, see [`Engine::tuning`].
    pub fn with_tuning(ordinal: usize, cache: DiskCache, tuning: Option<&Source>) -> Result<Self> {
        let context = Context::new(ordinal)?;
        let tuning = tuning::load(context.props(), tuning);
        let code = CodeStore::new(cache, Some(context.driver()));
        let compiler = Compiler::new(code, context.props().clone(), tuning);
        let inner = Inner { context, compiler, loaded: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device's context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// What was measured on this machine about which variant to use, read when the engine was opened. If the file is not
    /// used, [`Tuning::ignored`] has the reason, and nothing else changes.
    #[must_use]
    pub fn tuning(&self) -> &Tuning {
        &self.inner.compiler.tuning
    }

    /// Where its machine code comes from.
    #[must_use]
    pub fn code(&self) -> &CodeStore {
        &self.inner.compiler.code
    }

    /// What compiles its kernels, now or ahead.
    #[must_use]
    pub fn compiler(&self) -> &Arc<Compiler> {
        &self.inner.compiler
    }

    /// The kernels of a configuration in the order they are launched: from this process, from disk, or compiled, side
    /// by side.
    pub(crate) fn kernels(
        &self,
        variant: &'static Variant,
        configuration: &Configuration,
        call: &Call<'_>,
    ) -> Result<Vec<Kernel>> {
        let id = variant.spec.id;
        let units: Vec<(&str, Unit)> =
            configuration.units(variant, call).into_iter().map(|unit| (id, unit)).collect();
        let mut kernels: Vec<Option<Kernel>> = {
            let loaded = self.lock_loaded();
            units.iter().map(|unit| loaded.get(unit).cloned()).collect()
        };
        let missing: Vec<usize> = (0..units.len()).filter(|&at| kernels[at].is_none()).collect();
        // Not under the lock: compiling takes long, and doing it twice is harmless.
        let obtained: Vec<Result<Code>> = match missing[..] {
            [only] => vec![self.inner.compiler.obtain(variant, &units[only].1)],
            _ => std::thread::scope(|scope| {
                let wanted = missing.iter().map(|&at| &units[at].1);
                let obtain = |unit| scope.spawn(move || self.inner.compiler.obtain(variant, unit));
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

    fn load(&self, variant: &'static Variant, unit: &Unit, mut code: Code) -> Result<Kernel> {
        let module = match self.load_module(variant, &code) {
            // The error has nothing to do with the code.
            Err(lost @ (Error::ContextLost(_) | Error::Forked)) => return Err(lost),
            Err(refused) => {
                let arch = self.inner.context.props().arch();
                let replaced = self.code().replace(&code, variant, unit, &arch);
                code = replaced.ok_or(refused)??;
                self.load_module(variant, &code)?
            }
            Ok(loaded) => loaded,
        };
        // A cache that cannot be written is no reason to fail.
        drop(self.code().keep(&code));
        let entry = entry_name(variant.spec.id, unit.step);
        let function = module.function(&entry)?;
        let resources = KernelResources::parse(&code.compiled.log, &entry).unwrap_or_default();
        Ok(Kernel { step: unit.step, entry, function, resources })
    }

    fn load_module(&self, variant: &'static Variant, code: &Code) -> Result<Arc<Module>> {
        let (variant, compiler) = (variant.spec.id, code.compiler);
        Module::load(&self.inner.context, &code.compiled.cubin).map_err(|error| match error {
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
