//! Where machine code comes from: a kernel pack, the cache on disk, or NVRTC, in this order. Needs no GPU, only to know for
//! which one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use msdeform_files::FileError;

use super::{DiskCache, KernelPack, Key, Recipe};
use crate::error::{CudaVersion, Result};
use crate::nvrtc::{Compiled, Nvrtc};
use crate::variants::{Unit, Variant};

/// The cubins that a process has or can make.
#[derive(Debug)]
pub struct CodeStore {
    cache: DiskCache,
    /// What code must not be newer than, where there is a driver.
    driver: Option<CudaVersion>,
    /// Opened when the first kernel is needed; or the reason why it is not used.
    pack: OnceLock<std::result::Result<Option<KernelPack>, String>>,
    /// Whether the driver took nothing of it. Relaxed: who sees it late is refused once more.
    is_pack_refused: AtomicBool,
    /// Looked for when the first kernel has to be compiled.
    nvrtc: OnceLock<Result<Nvrtc>>,
    counts: Mutex<JitCounts>,
}

/// Where a kernel came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeOrigin {
    /// A kernel pack had it.
    Pack,
    /// The cache on disk had it.
    Disk,
    /// NVRTC compiled it now.
    Compiled,
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
    /// What it was made of.
    pub recipe: Recipe,
    key: Key,
    /// Whether the cache has it already.
    is_kept: bool,
}

/// Where kernels came from so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitCounts {
    /// Compiled by NVRTC.
    pub compiled: u64,
    /// Read from the cache on disk.
    pub read_from_disk: u64,
    /// Taken from a kernel pack.
    pub from_pack: u64,
}

impl CodeStore {
    /// What a cache and its pack have, and NVRTC can make for a driver; `None` where there is no driver.
    pub fn new(cache: DiskCache, driver: Option<CudaVersion>) -> Self {
        Self {
            cache,
            driver,
            pack: OnceLock::new(),
            is_pack_refused: AtomicBool::new(false),
            nvrtc: OnceLock::new(),
            counts: Mutex::default(),
        }
    }

    /// The same with a given compiler, or with what is said where one is needed.
    pub fn with_nvrtc(cache: DiskCache, driver: Option<CudaVersion>, nvrtc: Result<Nvrtc>) -> Self {
        Self { nvrtc: OnceLock::from(nvrtc), ..Self::new(cache, driver) }
    }

    /// The cache on disk.
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

    /// The kernel pack, read on the first call; `None` if no pack is installed.
    ///
    /// # Errors
    /// Why an installed pack is not used, as a message for the user.
    pub fn pack(&self) -> std::result::Result<Option<&KernelPack>, String> {
        let opened = self.pack.get_or_init(|| match self.cache.pack() {
            Some(path) => fitting_pack(path, self.driver).map(Some),
            None => Ok(None),
        });
        match opened {
            Ok(Some(pack)) if self.is_pack_refused.load(Ordering::Relaxed) => {
                Err(format!("{}: the driver does not load its kernels", pack.path().display()))
            }
            Ok(pack) => Ok(pack.as_ref()),
            Err(reason) => Err(reason.clone()),
        }
    }

    /// Where kernels came from so far.
    pub fn counts(&self) -> JitCounts {
        *self.lock_counts()
    }

    fn lock_counts(&self) -> MutexGuard<'_, JitCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a kernel is compiled to for an architecture (such as `sm_90a`).
    ///
    /// # Errors
    /// No compiler and nothing without one, an architecture it does not know, [`crate::Error::Compile`].
    pub fn obtain(&self, variant: &Variant, unit: &Unit, arch: &str) -> Result<Code> {
        match self.packed(variant, unit, arch) {
            Some(code) => Ok(code),
            None => self.made_here(variant, unit, arch),
        }
    }

    /// From the pack. Its code is for one architecture each, so there is no older cousin to look for.
    fn packed(&self, variant: &Variant, unit: &Unit, arch: &str) -> Option<Code> {
        let pack = self.pack().ok()??;
        if pack.kernels_for(arch) == 0 {
            return None;
        }
        let recipe = Recipe::new(variant, arch, &unit.defines);
        let key = recipe.content();
        // A damaged group only means that the kernel is compiled. Listing the pack reports the damage.
        let compiled = pack.find(&key).ok()??;
        Some(Code {
            compiled,
            origin: CodeOrigin::Pack,
            compiler: pack.compiler(),
            recipe,
            key,
            is_kept: false,
        })
    }

    /// From the cache, or compiled.
    fn made_here(&self, variant: &Variant, unit: &Unit, arch: &str) -> Result<Code> {
        let nvrtc = self.nvrtc()?;
        let recipe = Recipe::new(variant, &nvrtc.target_for(arch)?, &unit.defines);
        let (key, compiler) = (recipe.key(nvrtc.version()), nvrtc.version());
        let (compiled, origin) = match self.cache.load(&key) {
            Some(found) => (found, CodeOrigin::Disk),
            None => (recipe.compile(nvrtc)?, CodeOrigin::Compiled),
        };
        self.lock_counts().compiled += u64::from(origin == CodeOrigin::Compiled);
        Ok(Code { compiled, origin, compiler, recipe, key, is_kept: false })
    }

    /// The same kernel in place of code that a driver refused although it is whole: made by something else, or for
    /// another driver. `None` where it was compiled just now and would be no other.
    pub(crate) fn replace(
        &self,
        refused: &Code,
        variant: &Variant,
        unit: &Unit,
        arch: &str,
    ) -> Option<Result<Code>> {
        match refused.origin {
            CodeOrigin::Compiled => return None,
            CodeOrigin::Pack => self.is_pack_refused.store(true, Ordering::Relaxed),
            CodeOrigin::Disk => self.cache.remove(&refused.key),
        }
        Some(self.made_here(variant, unit, arch))
    }

    /// Keeps what was compiled for the next process, and counts what was not.
    ///
    /// # Errors
    /// Why it is not kept; the code can be used all the same.
    pub fn keep(&self, code: &Code) -> std::result::Result<(), FileError> {
        match code.origin {
            CodeOrigin::Pack => self.lock_counts().from_pack += 1,
            CodeOrigin::Disk => self.lock_counts().read_from_disk += 1,
            CodeOrigin::Compiled if code.is_kept => {}
            CodeOrigin::Compiled => return self.cache.try_store(&code.key, &code.compiled),
        }
        Ok(())
    }

    /// Stores a kernel compiled ahead, before a plan loads it. The counters do not change yet.
    pub(crate) fn keep_ahead(&self, mut code: Code) -> Code {
        if code.origin == CodeOrigin::Compiled {
            code.is_kept = self.cache.try_store(&code.key, &code.compiled).is_ok();
        }
        code
    }
}

/// A pack whose code a driver can be expected to load: every driver runs what older compilers made, and what those of
/// its own major version did.
fn fitting_pack(
    path: &Path,
    driver: Option<CudaVersion>,
) -> std::result::Result<KernelPack, String> {
    let pack = KernelPack::open(path)?;
    match driver {
        Some(driver) if driver.major < pack.compiler().major => Err(format!(
            "{}: was made by NVRTC {}, and the driver is for CUDA {driver}; kernels are compiled instead",
            path.display(),
            pack.compiler()
        )),
        _ => Ok(pack),
    }
}

#[cfg(test)]
mod tests {
    use msdeform::{DType, Direction, Problem};

    use super::*;
    use crate::driver::DeviceProps;
    use crate::error::Error;
    use crate::jit::{PackGroup, encode_pack};
    use crate::variants::{Call, KnobChoices};

    const ARCH: &str = "sm_90a";
    const CUDA_13: CudaVersion = CudaVersion { major: 13, minor: 0 };

    type Kernels = Vec<(&'static Variant, Unit)>;

    /// What a small decoder's forward call is compiled to.
    fn kernels() -> Kernels {
        let problem = Problem::builder().heads(2).channels(8).queries(10).points(2);
        let problem = problem.levels([(8, 8)]).dtype(DType::F16).build().unwrap();
        let device = DeviceProps::h200();
        let call = Call::in_direction(Direction::Forward, &problem, &device);
        let variant = crate::dispatch::builtin(&call).unwrap();
        let configured = variant.configure(&call, &KnobChoices::default()).unwrap();
        configured.units(variant, &call).into_iter().map(|unit| (variant, unit)).collect()
    }

    fn missing() -> Result<Nvrtc> {
        Err(Error::MissingNvrtc { searched: "nowhere".to_owned() })
    }

    /// A pack of code that stands for each kernel, in a folder.
    fn pack(kernels: &Kernels) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels.pack");
        let kernels = kernels.iter().map(|(variant, unit)| {
            let content = Recipe::new(variant, ARCH, &unit.defines).content();
            (content, Compiled { cubin: unit.name().into_bytes(), log: String::new() })
        });
        let group = PackGroup { arch: ARCH.to_owned(), kernels: kernels.collect() };
        std::fs::write(&path, encode_pack(CUDA_13, &[group]).unwrap()).unwrap();
        (folder, path)
    }

    fn obtain(store: &CodeStore, kernels: &Kernels, arch: &str) -> Result<Vec<Code>> {
        kernels.iter().map(|(variant, unit)| store.obtain(variant, unit, arch)).collect()
    }

    #[test]
    fn with_a_pack_no_compiler_is_needed_for_what_is_in_it_and_only_for_that() {
        let kernels = kernels();
        let (_folder, path) = pack(&kernels);
        let cache = DiskCache::nowhere().with_pack(path);
        let store = CodeStore::with_nvrtc(cache, Some(CUDA_13), missing());
        for (code, (_, unit)) in obtain(&store, &kernels, ARCH).unwrap().iter().zip(&kernels) {
            assert_eq!((code.origin, code.compiler), (CodeOrigin::Pack, CUDA_13));
            assert_eq!(code.compiled.cubin, unit.name().into_bytes());
            store.keep(code).unwrap();
        }
        assert_eq!(store.counts().from_pack, kernels.len() as u64);
        let missing = obtain(&store, &kernels, "sm_80").unwrap_err();
        assert!(matches!(missing, Error::MissingNvrtc { .. }), "{missing}");
        let (variant, mut unit) = kernels[0].clone();
        unit.defines.push("-DMSDA_OTHER=1".to_owned());
        assert!(store.obtain(variant, &unit, ARCH).is_err());
    }

    #[test]
    fn a_pack_that_is_damaged_or_too_new_for_the_driver_says_so_and_is_passed_over() {
        let kernels = kernels();
        let (_folder, path) = pack(&kernels);
        let cache = || DiskCache::nowhere().with_pack(&path);
        let older = CudaVersion { major: 12, minor: 9 };
        let store = CodeStore::with_nvrtc(cache(), Some(older), missing());
        assert!(store.pack().unwrap_err().contains("the driver is for CUDA 12.9"));
        assert!(obtain(&store, &kernels, ARCH).is_err());

        std::fs::write(&path, b"msdapak1 and nothing else").unwrap();
        let store = CodeStore::with_nvrtc(cache(), Some(CUDA_13), missing());
        assert!(store.pack().unwrap_err().contains("install it again"));
        assert!(matches!(obtain(&store, &kernels, ARCH), Err(Error::MissingNvrtc { .. })));
        std::fs::remove_file(&path).unwrap();
        let store = CodeStore::with_nvrtc(cache(), Some(CUDA_13), missing());
        assert!(store.pack().unwrap_err().contains("kernels.pack"));
    }

    #[test]
    fn a_pack_that_the_driver_refuses_is_not_read_again() {
        let Some(nvrtc) = Nvrtc::for_tests() else { return };
        let kernels = kernels();
        let (_folder, path) = pack(&kernels);
        let store = CodeStore::with_nvrtc(DiskCache::nowhere().with_pack(path), None, Ok(nvrtc));
        let (variant, unit) = &kernels[0];
        let refused = store.obtain(variant, unit, ARCH).unwrap();
        let code = store.replace(&refused, variant, unit, ARCH).unwrap().unwrap();
        assert_eq!(code.origin, CodeOrigin::Compiled);
        assert!(code.compiled.cubin.starts_with(b"\x7fELF"));
        assert!(store.pack().unwrap_err().contains("the driver does not load"));
        assert!(store.replace(&code, variant, unit, ARCH).is_none(), "it would be the same");
        assert_eq!(store.obtain(variant, unit, ARCH).unwrap().origin, CodeOrigin::Compiled);
    }
}
