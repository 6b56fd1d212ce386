//! NVRTC, the CUDA run-time compiler, loaded from wherever the user has it.

mod locate;
mod resources;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

pub use locate::search_packages;
pub use resources::KernelResources;

use crate::error::{CudaVersion, Error, Result};

type Program = *mut c_void;
type Status = c_int;

/// The functions used, under the names NVRTC gives them.
struct Api {
    get_error_string: unsafe extern "C" fn(Status) -> *const c_char,
    create_program: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy_program: unsafe extern "C" fn(*mut Program) -> Status,
    compile_program: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    get_log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    get_log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    get_cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    get_cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    get_ptx_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    get_ptx: unsafe extern "C" fn(Program, *mut c_char) -> Status,
}

/// A loaded NVRTC.
pub struct Nvrtc {
    api: Api,
    path: PathBuf,
    version: CudaVersion,
    /// Compute capabilities it compiles for, as `90` for 9.0.
    archs: Vec<i32>,
    /// Last: the functions above point into it.
    _library: Library,
    _builtins: Option<Library>,
}

/// What a compilation produced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code for one architecture.
    pub cubin: Vec<u8>,
    /// What the compiler printed, with ptxas' resource usage if it was asked for.
    pub log: String,
}

impl Nvrtc {
    /// The best NVRTC on this machine: the newest that the driver can follow, or, without a driver,
    /// the first found. `MSDEFORM_NVRTC` names one explicitly (the file, or its folder).
    ///
    /// # Errors
    /// [`Error::MissingNvrtc`] with the places searched, or [`Error::BadNvrtc`] if the one named
    /// explicitly does not load.
    pub fn find(driver: Option<CudaVersion>) -> Result<Self> {
        Self::find_with(driver, &locate::Environment::of_process())
    }

    fn find_with(driver: Option<CudaVersion>, environment: &locate::Environment) -> Result<Self> {
        if let Some(path) = environment.explicit() {
            return Self::open(&path);
        }
        let candidates = environment.candidates();
        let mut newer: Option<Self> = None;
        for candidate in &candidates {
            let Ok(found) = Self::open(candidate) else { continue };
            match driver {
                Some(driver) if found.version > driver => {
                    // Kept as a last resort, the oldest first: within a major version the driver
                    // usually loads it anyway.
                    if newer.as_ref().is_none_or(|kept| found.version < kept.version) {
                        newer = Some(found);
                    }
                }
                _ => return Ok(found),
            }
        }
        newer.ok_or_else(|| Error::MissingNvrtc { searched: environment.describe() })
    }

    /// Loads one file, or a name that the dynamic loader knows.
    ///
    /// # Errors
    /// [`Error::BadNvrtc`] if it does not load or is not NVRTC.
    pub fn open(path: &Path) -> Result<Self> {
        let bad = |reason: String| Error::BadNvrtc { path: path.to_owned(), reason };
        // SAFETY: the file is a shared library by its name; NVRTC has no initialisers with
        // requirements, and what is not NVRTC is found out below before anything is called.
        let library = unsafe { Library::new(path) }.map_err(|error| bad(error.to_string()))?;
        let version = symbol::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status>;
        let one_int = symbol::<unsafe extern "C" fn(*mut c_int) -> Status>;
        // SAFETY: these types and those of `Api` are the ones of nvrtc.h.
        let (version, count, list, api) = unsafe {
            (
                version(&library, "nvrtcVersion").map_err(bad)?,
                one_int(&library, "nvrtcGetNumSupportedArchs").map_err(bad)?,
                one_int(&library, "nvrtcGetSupportedArchs").map_err(bad)?,
                Api {
                    get_error_string: symbol(&library, "nvrtcGetErrorString").map_err(bad)?,
                    create_program: symbol(&library, "nvrtcCreateProgram").map_err(bad)?,
                    destroy_program: symbol(&library, "nvrtcDestroyProgram").map_err(bad)?,
                    compile_program: symbol(&library, "nvrtcCompileProgram").map_err(bad)?,
                    get_log_size: symbol(&library, "nvrtcGetProgramLogSize").map_err(bad)?,
                    get_log: symbol(&library, "nvrtcGetProgramLog").map_err(bad)?,
                    get_cubin_size: symbol(&library, "nvrtcGetCUBINSize").map_err(bad)?,
                    get_cubin: symbol(&library, "nvrtcGetCUBIN").map_err(bad)?,
                    get_ptx_size: symbol(&library, "nvrtcGetPTXSize").map_err(bad)?,
                    get_ptx: symbol(&library, "nvrtcGetPTX").map_err(bad)?,
                },
            )
        };
        let (mut major, mut minor, mut arch_count) = (0, 0, 0);
        // SAFETY: both places are writable.
        api.check(unsafe { version(&raw mut major, &raw mut minor) }).map_err(bad)?;
        // SAFETY: the place is writable.
        api.check(unsafe { count(&raw mut arch_count) }).map_err(bad)?;
        let mut archs = vec![0; usize::try_from(arch_count).unwrap_or(0)];
        // SAFETY: the list is as long as NVRTC said.
        api.check(unsafe { list(archs.as_mut_ptr()) }).map_err(bad)?;
        let version = CudaVersion { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
        let builtins = load_builtins(path, version);
        Ok(Self {
            api,
            path: path.to_owned(),
            version,
            archs,
            _library: library,
            _builtins: builtins,
        })
    }

    /// The file it was loaded from, or the name the loader knew it by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version.
    pub const fn version(&self) -> CudaVersion {
        self.version
    }

    /// The architecture to compile for so that the result runs on `arch` (such as `sm_90a`): itself,
    /// or an older one of the same family, whose code also runs.
    ///
    /// # Errors
    /// [`Error::UnknownArch`] if the compiler is too old for the whole family.
    pub fn target_for(&self, arch: &str) -> Result<String> {
        let unknown = || Error::UnknownArch { compiler: self.version, arch: arch.to_owned() };
        let digits = arch.trim_start_matches("sm_").trim_end_matches('a');
        let wanted: i32 = digits.parse().map_err(|_| unknown())?;
        if self.archs.contains(&wanted) {
            return Ok(arch.to_owned());
        }
        let same_family =
            self.archs.iter().filter(|&&have| have / 10 == wanted / 10 && have < wanted);
        same_family.max().map(|have| format!("sm_{have}")).ok_or_else(unknown)
    }

    /// Compiles one source for one architecture (named in `options`).
    pub fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<Compiled> {
        self.compile_to(name, source, options, |program, log| {
            program.cubin().map(|cubin| Compiled { cubin, log })
        })
    }

    /// Compiles one source to PTX, for a virtual architecture (such as `compute_80`, named in `options`).
    pub fn ptx(&self, name: &str, source: &str, options: &[String]) -> Result<String> {
        self.compile_to(name, source, options, |program, _| program.ptx())
    }

    /// Compiles one source and takes a result from the program and its log.
    fn compile_to<T>(
        &self,
        name: &str,
        source: &str,
        options: &[String],
        take: impl FnOnce(&OwnedProgram<'_>, String) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let failed = |log: String| Error::Compile {
            variant: name.trim_end_matches(".cu").to_owned(),
            arch: options
                .iter()
                .find_map(|option| option.strip_prefix("--gpu-architecture="))
                .unwrap_or("an unnamed architecture")
                .to_owned(),
            compiler: self.version,
            options: options.join(" "),
            log,
        };
        let zero_ended = |text: &str| CString::new(text).map_err(|error| failed(error.to_string()));
        let mut options =
            options.iter().map(|option| zero_ended(option)).collect::<Result<Vec<_>>>()?;
        if self.version.major >= 13 {
            // NVRTC's own cache returns a cubin without ptxas' log, and we have a cache of our own.
            options.push(zero_ended("--no-cache")?);
        }
        let (source, name) = (zero_ended(source)?, zero_ended(name)?);
        let mut program = OwnedProgram { api: &self.api, raw: std::ptr::null_mut() };
        // SAFETY: both strings end with a zero and live through the call, and NVRTC copies them. There are no headers, so
        // both lists may be null.
        let created = unsafe {
            (self.api.create_program)(
                &raw mut program.raw,
                source.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        self.api.check(created).map_err(failed)?;
        let option_list: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let option_count = count(options.len());
        // SAFETY: the program is valid; the options end with a zero and live through the call.
        let compiled =
            unsafe { (self.api.compile_program)(program.raw, option_count, option_list.as_ptr()) };
        let log = program.log();
        if let Err(reason) = self.api.check(compiled) {
            return Err(failed(format!("{reason}\n{log}")));
        }
        take(&program, log).map_err(failed)
    }

    /// The compiler for tests: the one named by `MSDEFORM_NVRTC` or found; without one the test says
    /// that it is skipped, or fails where `MSDEFORM_REQUIRE_NVRTC` is set.
    #[doc(hidden)]
    #[allow(clippy::panic, reason = "a test's way to fail")]
    pub fn for_tests() -> Option<Self> {
        // Miri loads no libraries.
        if cfg!(miri) {
            return None;
        }
        match Self::find(None) {
            Ok(nvrtc) => Some(nvrtc),
            Err(error) if std::env::var_os("MSDEFORM_REQUIRE_NVRTC").is_some() => panic!("{error}"),
            Err(error) => {
                eprintln!("SKIPPED without NVRTC: {error}");
                None
            }
        }
    }
}

/// A file that some Python package brings, by its place below the folder of packages: the first there is.
pub(crate) fn in_packages(file: &str) -> Option<PathBuf> {
    let folders = locate::Environment::of_process().site_packages();
    folders.into_iter().map(|folder| folder.join(file)).find(|path| path.is_file())
}

/// NVRTC opens its second half by name when it compiles, and that of some wheels (13.0) does not look in
/// its own folder. Loaded here from there, it is found by that name. Nothing to load is fine: the loader
/// may find it. If not, compiling fails with the reason.
fn load_builtins(nvrtc: &Path, version: CudaVersion) -> Option<Library> {
    let file = nvrtc.parent()?.join(locate::System::default().builtins(version));
    // SAFETY: a part of NVRTC by its name and folder, which NVRTC itself would load; no initialisers with
    // requirements.
    file.is_file().then(|| unsafe { Library::new(&file) }.ok()).flatten()
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NVRTC {} ({})", self.version, self.path.display())
    }
}

/// A function of a library.
///
/// # Safety
/// `T` is the function's type.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> std::result::Result<T, String> {
    // SAFETY: the caller knows the type.
    unsafe { library.get::<T>(name) }.map(|symbol| *symbol).map_err(|error| error.to_string())
}

fn count(length: usize) -> c_int {
    c_int::try_from(length).unwrap_or(c_int::MAX)
}

impl Api {
    fn check(&self, status: Status) -> std::result::Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: takes any number and returns a static string.
        let text = unsafe { (self.get_error_string)(status) };
        if text.is_null() {
            return Err(format!("NVRTC error {status}"));
        }
        // SAFETY: not null; static and ended with a zero.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// A program that is destroyed again.
struct OwnedProgram<'a> {
    api: &'a Api,
    raw: Program,
}

impl OwnedProgram<'_> {
    /// The compiler's log. Empty if the log is missing, because a missing log must not hide the error it belongs to.
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program is valid, `size` is writable.
        if unsafe { (self.api.get_log_size)(self.raw, &raw mut size) } != 0 || size == 0 {
            return String::new();
        }
        let mut text = vec![0u8; size];
        // SAFETY: the buffer has the size NVRTC asked for.
        if unsafe { (self.api.get_log)(self.raw, text.as_mut_ptr().cast()) } != 0 {
            return String::new();
        }
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }

    fn cubin(&self) -> std::result::Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: the program is valid, `size` is writable.
        self.api.check(unsafe { (self.api.get_cubin_size)(self.raw, &raw mut size) })?;
        if size == 0 {
            return Err("NVRTC produced no machine code".to_owned());
        }
        let mut cubin = vec![0u8; size];
        // SAFETY: the buffer has the size NVRTC asked for.
        self.api.check(unsafe { (self.api.get_cubin)(self.raw, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }

    fn ptx(&self) -> std::result::Result<String, String> {
        let mut size = 0;
        // SAFETY: the program is valid, `size` is writable.
        self.api.check(unsafe { (self.api.get_ptx_size)(self.raw, &raw mut size) })?;
        let mut text = vec![0u8; size];
        // SAFETY: the buffer has the size NVRTC asked for.
        self.api.check(unsafe { (self.api.get_ptx)(self.raw, text.as_mut_ptr().cast()) })?;
        // The size counts the zero at the end.
        text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(size));
        String::from_utf8(text).map_err(|error| error.to_string())
    }
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created by NVRTC, destroyed once.
            unsafe { (self.api.destroy_program)(&raw mut self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_nvrtc_is_told_how_to_get_it() {
        let folder = tempfile::tempdir().unwrap();
        let environment = locate::Environment::only(folder.path());
        let error = Nvrtc::find_with(None, &environment).unwrap_err();
        assert!(matches!(error, Error::MissingNvrtc { .. }));
        let message = error.to_string();
        for words in ["pip install nvidia-cuda-nvrtc", "MSDEFORM_NVRTC", "Searched"] {
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn an_explicit_file_that_is_not_nvrtc_is_an_error_and_not_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnvrtc.so.13");
        std::fs::write(&path, b"not a library").unwrap();
        let error = Nvrtc::open(&path).unwrap_err();
        assert!(matches!(&error, Error::BadNvrtc { path: found, .. } if *found == path));
        assert!(error.to_string().contains("MSDEFORM_NVRTC"), "{error}");
    }

    #[test]
    fn a_failed_compilation_carries_variant_arch_and_log() {
        let Some(nvrtc) = Nvrtc::for_tests() else { return };
        let options = ["--gpu-architecture=sm_90a".to_owned()];
        let source = "extern \"C\" __global__ void broken() { undeclared = 1; }";
        let error = nvrtc.compile("broken.cu", source, &options).unwrap_err().to_string();
        for words in ["`broken`", "sm_90a", "undeclared"] {
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn an_unknown_relative_gets_an_older_cousin_and_a_stranger_gets_an_error() {
        let Some(nvrtc) = Nvrtc::for_tests() else { return };
        assert_eq!(nvrtc.target_for("sm_90a").unwrap(), "sm_90a");
        assert!(nvrtc.target_for("sm_129a").unwrap().starts_with("sm_12"));
        assert!(matches!(nvrtc.target_for("sm_770a"), Err(Error::UnknownArch { .. })));
    }
}
