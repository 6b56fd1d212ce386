//! Kernels compiled for the host, and their launches.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rayon::prelude::*;

use crate::error::{Fault, SANITIZER_EXIT, io};
use crate::launch::Launch;
use crate::toolchain::{KERNEL_FLAGS, KERNEL_SOURCE, Toolchain, cpp_folder, hash_file, hash_files};
use crate::{EmulatorError, wire};

/// The kernels of a file and the macros they are compiled with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Specialisation {
    /// The `.cu` file.
    pub source: PathBuf,
    /// The folders of its headers (`*.cuh`).
    pub headers: Vec<PathBuf>,
    /// Its entry functions. Each takes one structure, or several parameters that lie one after the other as in a
    /// structure. A launch names them by their position.
    pub entries: Vec<String>,
    /// `-DNAME=VALUE` each, as the device compiler gets them.
    pub defines: Vec<String>,
}

/// Kernels of one file that run on the host.
#[derive(Clone, Debug)]
pub struct EmulatedKernel {
    name: String,
    runner: PathBuf,
    libraries: Vec<PathBuf>,
    time_limit: Duration,
}

impl EmulatedKernel {
    /// Compiles a kernel, or finds it among those compiled before: the key is a hash of every source,
    /// the macros, the flags and the compiler.
    ///
    /// # Errors
    /// No compiler, a kernel it refuses, or trouble with files.
    pub fn compile(specialisation: &Specialisation) -> Result<Self, EmulatorError> {
        let Specialisation { source, headers, entries, defines } = specialisation;
        let entries = entries.join(",");
        let toolchain = Toolchain::get()?;
        let mut hasher = toolchain.hasher();
        hash_file(&mut hasher, source)?;
        for folder in headers {
            hash_files(&mut hasher, folder, "cuh")?;
        }
        hasher.update(entries.as_bytes());
        for define in defines {
            hasher.update(b"\0").update(define.as_bytes());
        }
        let runner = toolchain.runner()?;
        let file_name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = file_name.trim_end_matches(".cu").to_owned();
        let library = toolchain.product(&name, &hasher.finalize())?;
        toolchain.build_once(&library, || {
            let mut command = toolchain.compile();
            command
                .args(KERNEL_FLAGS)
                .args(["-shared", "-DMSDA_EMULATED"])
                .args(defines)
                .arg(format!("-DMSDA_EMULATED_SOURCE=\"{}\"", source.display()))
                .arg(format!("-DMSDA_EMULATED_ENTRIES={entries}"))
                .arg("-include")
                .arg(cpp_folder().join("vocabulary.hpp"))
                .arg("-I")
                .arg(cpp_folder())
                .args(headers.iter().flat_map(|folder| [OsStr::new("-I"), folder.as_os_str()]))
                .arg(cpp_folder().join(KERNEL_SOURCE));
            toolchain.install(command, &file_name, &library)
        })?;
        Ok(Self { name, runner, libraries: vec![library], time_limit: Duration::from_secs(60) })
    }

    /// Compiles several kernels at once, on all cores.
    pub fn compile_all(
        specialisations: &[Specialisation],
    ) -> Vec<Result<EmulatedKernel, EmulatorError>> {
        specialisations.par_iter().map(Self::compile).collect()
    }

    /// Adds kernels that were compiled with other macros, so that a launch may have steps of both. Their numbers follow
    /// those of this one's kernels.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.libraries.extend(other.libraries);
        self
    }

    /// Changes how much CPU time one call of [`EmulatedKernel::launch_all`] may take (60 seconds).
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Runs one launch; returns the buffers that are [`crate::Buffer::written`], in order.
    ///
    /// # Errors
    /// The fault that the emulator or a sanitizer found in the kernel.
    pub fn launch(&self, launch: &Launch) -> Result<Vec<Vec<u8>>, EmulatorError> {
        let outputs = self.launch_all(std::slice::from_ref(launch))?;
        Ok(outputs.into_iter().next().unwrap_or_default())
    }

    /// Runs several launches, with separate memory, in one process.
    ///
    /// # Errors
    /// The first launch that fails ends the call.
    pub fn launch_all(&self, launches: &[Launch]) -> Result<Vec<Vec<Vec<u8>>>, EmulatorError> {
        let request = wire::request(launches, self.time_limit);
        let mut process = Command::new(&self.runner)
            .args(&self.libraries)
            // Leaks do not matter in a process that ends here, and looking for them takes time.
            .env("ASAN_OPTIONS", format!("exitcode={SANITIZER_EXIT}:detect_leaks=0"))
            .env("UBSAN_OPTIONS", format!("exitcode={SANITIZER_EXIT}:print_stacktrace=1"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(io("cannot start", &self.runner))?;
        // The answers of early launches may fill the pipe before all requests are read, so writing and
        // reading happen at the same time. A kernel that fails ends the process and breaks the pipe, so
        // the error is read from the exit status and not from the failed write.
        let stdin = process.stdin.take();
        let output = std::thread::scope(|scope| {
            scope.spawn(|| stdin.map(|mut pipe| pipe.write_all(&request)));
            process.wait_with_output()
        })
        .map_err(io("cannot read the answer of", &self.runner))?;
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Err(Fault::from_exit(output.status).of(&self.name, report));
        }
        wire::split_answer(launches, &output.stdout).ok_or_else(|| {
            let bytes = output.stdout.len();
            let report = format!("the runner answered {bytes} bytes, which do not fit the buffers");
            Fault::Request.of(&self.name, report)
        })
    }
}
