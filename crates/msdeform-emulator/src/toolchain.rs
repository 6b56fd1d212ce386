//! The host's C++ compiler, and its cached products under `target/`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::EmulatorError;
use crate::error::io;

/// No contraction: kernels write `fmaf` where they need it, so every host computes equal bits.
const FLAGS: [&str; 5] =
    ["-std=c++17", "-g1", "-ffp-contract=off", "-fno-omit-frame-pointer", "-fPIC"];
/// For kernels, and for the parts of the runtime that access memory for them.
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
/// GCC's sanitizers in the program itself: a switch of fibers reads a thread-local variable of theirs, which is slow in
/// a library. Clang links them statically anyway.
const GCC_RUNNER_FLAGS: [&str; 2] = ["-static-libasan", "-static-libubsan"];

/// The runtime is compiled once and runs all the time, so it is optimised and may have no warnings.
const RUNTIME_FLAGS: [&str; 4] = ["-O2", "-Wall", "-Wextra", "-Werror"];
/// Hundreds of kernels are compiled to run a few milliseconds each: `-Og` takes two thirds of the time
/// of `-O1`. They have pragmas of NVRTC. The runner that loads them has every library they need,
/// and searching those would take most of the linker's time. They use functions of C; GCC's C++ versions of those
/// headers, which this macro of GCC's own turns off, take 0.2 s to read.
pub(crate) const KERNEL_FLAGS: [&str; 6] = [
    "-Og",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-Wno-unused-function",
    "-nodefaultlibs",
    "-D_GLIBCXX_INCLUDE_NEXT_C_HEADERS",
];

/// Compiled without sanitizers: they touch no memory of a kernel and take a third of the time of most launches.
const SCHEDULING_SOURCES: [&str; 2] = ["fiber.cpp", "scheduler.cpp"];
const RUNTIME_SOURCES: [&str; 4] = ["fiber.cpp", "scheduler.cpp", "async_copy.cpp", "main.cpp"];
/// Includes the kernel, and is compiled with it.
pub(crate) const KERNEL_SOURCE: &str = "entry.cpp";

/// A compiler that was found, with its version.
pub(crate) struct Toolchain {
    compiler: OsString,
    version: String,
    /// Hash of the version, the flags and the headers: what a kernel depends on besides its own sources.
    fingerprint: blake3::Hash,
    cache: PathBuf,
}

/// The first line that the C++ compiler prints about itself.
///
/// # Errors
/// [`EmulatorError::CompilerMissing`].
pub fn compiler_version() -> Result<&'static str, EmulatorError> {
    Toolchain::get().map(|toolchain| toolchain.version.as_str())
}

/// The folder with the C++ half of this crate.
pub(crate) fn cpp_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp")
}

impl Toolchain {
    /// Found once per process.
    pub(crate) fn get() -> Result<&'static Self, EmulatorError> {
        static FOUND: OnceLock<Option<Toolchain>> = OnceLock::new();
        let candidates: Vec<OsString> = match std::env::var_os("CXX") {
            Some(chosen) => vec![chosen],
            None => vec!["g++".into(), "clang++".into(), "c++".into()],
        };
        let found = FOUND.get_or_init(|| candidates.iter().find_map(Self::probe));
        found.as_ref().ok_or_else(|| {
            let tried = candidates.iter().map(|name| name.to_string_lossy()).collect::<Vec<_>>();
            EmulatorError::CompilerMissing { tried: tried.join(", ") }
        })
    }

    fn probe(compiler: &OsString) -> Option<Self> {
        let output = Command::new(compiler).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = output.status.success().then(|| text.lines().next())??.to_owned();
        let mut hasher = blake3::Hasher::new();
        hasher.update(version.as_bytes());
        let flags = FLAGS.iter().chain(&SANITIZERS).chain(&GCC_RUNNER_FLAGS);
        for flag in flags.chain(&RUNTIME_FLAGS).chain(&KERNEL_FLAGS) {
            hasher.update(flag.as_bytes()).update(b"\0");
        }
        hash_files(&mut hasher, &cpp_folder(), "hpp").ok()?;
        hash_file(&mut hasher, &cpp_folder().join(KERNEL_SOURCE)).ok()?;
        Some(Self {
            compiler: compiler.clone(),
            version,
            fingerprint: hasher.finalize(),
            cache: cache_folder(),
        })
    }

    /// The path of a product with this fingerprint; creates the folder.
    pub(crate) fn product(
        &self,
        name: &str,
        hash: &blake3::Hash,
    ) -> Result<PathBuf, EmulatorError> {
        std::fs::create_dir_all(&self.cache).map_err(io("cannot create", &self.cache))?;
        Ok(self.cache.join(format!("{name}-{}", &hash.to_hex()[..24])))
    }

    /// A hash that starts from everything that all products depend on.
    pub(crate) fn hasher(&self) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.fingerprint.as_bytes());
        hasher
    }

    /// The program that loads and runs compiled kernels, built on first use.
    pub(crate) fn runner(&self) -> Result<PathBuf, EmulatorError> {
        let mut hasher = self.hasher();
        for source in RUNTIME_SOURCES {
            hash_file(&mut hasher, &cpp_folder().join(source))?;
        }
        let runner = self.product("runner", &hasher.finalize())?;
        self.build_once(&runner, || self.build_runner(&runner))?;
        Ok(runner)
    }

    fn build_runner(&self, runner: &Path) -> Result<(), EmulatorError> {
        let folder = tempfile::tempdir_in(&self.cache)
            .map_err(io("cannot create a folder in", &self.cache))?;
        // Plain threads, because a rayon worker that waits may start to compile a kernel, which needs this runner.
        let objects = std::thread::scope(|scope| {
            let compile = |source: &'static str| {
                let object = folder.path().join(source).with_extension("o");
                let mut command = Command::new(&self.compiler);
                command.args(FLAGS).args(RUNTIME_FLAGS).arg("-c").arg(cpp_folder().join(source));
                if !SCHEDULING_SOURCES.contains(&source) {
                    command.args(SANITIZERS);
                }
                self.run(command.arg("-o").arg(&object), source).map(|()| object)
            };
            let threads = RUNTIME_SOURCES.map(|source| scope.spawn(move || compile(source)));
            threads
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect::<Result<Vec<_>, _>>()
        })?;
        // Kernels resolve the runtime's functions from the program that loads them.
        let mut command = self.compile();
        command.args(objects).args(["-rdynamic", "-ldl"]);
        if !self.version.contains("clang") {
            command.args(GCC_RUNNER_FLAGS);
        }
        self.install(command, "the runner", runner)
    }

    /// The compiler with the flags of kernels and linked products.
    pub(crate) fn compile(&self) -> Command {
        let mut command = Command::new(&self.compiler);
        command.args(FLAGS).args(SANITIZERS);
        command
    }

    /// Calls `build` unless the product is there. Threads that want the same product wait for the one
    /// that builds it.
    pub(crate) fn build_once(
        &self,
        product: &Path,
        build: impl FnOnce() -> Result<(), EmulatorError>,
    ) -> Result<(), EmulatorError> {
        static LOCKS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
        // The lock guards no data, so a poisoned one is still valid.
        let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = Arc::clone(locks.entry(product.to_owned()).or_default());
        drop(locks);
        let _building = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if product.exists() { Ok(()) } else { build() }
    }

    /// Runs a compiler command and puts its product in place at once: two processes that build the
    /// same thing never see each other's half-written file.
    pub(crate) fn install(
        &self,
        mut command: Command,
        what: &str,
        product: &Path,
    ) -> Result<(), EmulatorError> {
        let unfinished = tempfile::Builder::new()
            .prefix("unfinished-")
            .tempfile_in(&self.cache)
            .map_err(io("cannot create a file in", &self.cache))?
            .into_temp_path();
        self.run(command.arg("-o").arg(&unfinished), what)?;
        std::fs::rename(&unfinished, product).map_err(io("cannot move into place", product))
    }

    fn run(&self, command: &mut Command, what: &str) -> Result<(), EmulatorError> {
        let output = command.output().map_err(io("cannot run", Path::new(&self.compiler)))?;
        if output.status.success() {
            return Ok(());
        }
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(EmulatorError::Compile { kernel: what.to_owned(), log })
    }
}

/// Mixes the names and contents of a folder's files with this extension into a hash, in order.
pub(crate) fn hash_files(
    hasher: &mut blake3::Hasher,
    folder: &Path,
    extension: &str,
) -> Result<(), EmulatorError> {
    let listed = std::fs::read_dir(folder).map_err(io("cannot list", folder))?;
    let mut files: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    for file in files {
        hash_file(hasher, &file)?;
    }
    Ok(())
}

/// Mixes a file's name and contents into a hash.
pub(crate) fn hash_file(hasher: &mut blake3::Hasher, file: &Path) -> Result<(), EmulatorError> {
    let contents = std::fs::read(file).map_err(io("cannot read", file))?;
    hasher.update(file.file_name().unwrap_or_default().as_encoded_bytes());
    hasher.update(&(contents.len() as u64).to_le_bytes()).update(&contents);
    Ok(())
}

fn cache_folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    target.join("emulator")
}
