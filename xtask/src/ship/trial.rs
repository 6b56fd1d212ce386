//! `cargo xtask try`: what was built for a platform is run, on this machine or under an emulator.
//!
//! Linux on ARM: the library's tests and the Python package's, under qemu, with Python from Debian. Windows: the library's
//! tests and the command line under Wine, which loads the wheel's library too; no registry has a Python for it. macOS: what was linked is looked at.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::dll;
use super::mach_o::{Library, is_of_python, is_part_of_macos};
use super::platforms::{PLATFORMS, Platform, build_tool};
use super::wheel::{self, Effort, platforms};
use crate::process::{self, capture, on_path, run_ok};
use crate::python::{self, pytest_count};
use crate::setup;
use crate::steps::{Count, Report, Steps};
use crate::test::harness_report;
use crate::tree;
use crate::uv::Uv;

/// Options of `try`.
#[derive(Args)]
pub struct TryArgs {
    /// The platforms to try, or `all` [default: this machine]
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
    /// Where wheels of `cargo xtask wheel` are; one that is missing is built, hardly optimised [default: target/tried]
    #[arg(long, value_name = "FOLDER")]
    wheels: Option<PathBuf>,
    /// Only these steps, by the names in the summary
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
}

/// What was run of a platform, and what was not, for the release notes.
pub struct Tried {
    pub platform: &'static Platform,
    /// Steps, with what came out of them.
    pub run: Vec<(String, String)>,
    pub not_run: &'static str,
}

/// What `cargo xtask try` does.
pub fn run(args: &TryArgs) -> Result<ExitCode> {
    let mut chosen = platforms(&args.target)?;
    if chosen.is_empty() {
        chosen.push(&PLATFORMS[0]);
    }
    let folder = args.wheels.clone().unwrap_or_else(|| tree::target().join("tried"));
    let mut steps = Steps::only(&args.only);
    for platform in chosen {
        let found_or_built = || match wheel_of(platform, &folder) {
            Some(found) => Ok(found),
            None => wheel::build(Some(platform), Effort::Tried, &folder),
        };
        let tried = steps_of(&mut steps, platform, found_or_built);
        if !tried.not_run.is_empty() {
            println!("{}: not run: {}", tried.platform.triple, tried.not_run);
        }
    }
    Ok(if steps.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The wheel for a platform in a folder.
pub fn wheel_of(platform: &Platform, folder: &Path) -> Option<PathBuf> {
    let end = format!("{}.whl", platform.wheel_tag);
    let entries = std::fs::read_dir(folder).ok()?;
    let mut files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    files.find(|file| file.to_string_lossy().ends_with(&end))
}

/// Runs everything that can be run of a platform here. Its wheel is asked for where a step is about it.
pub fn steps_of(
    steps: &mut Steps,
    platform: &'static Platform,
    wheel: impl Fn() -> Result<PathBuf>,
) -> Tried {
    let mut names = Vec::new();
    let mut step = |name: String, run: &dyn Fn() -> Result<Report>| {
        steps.run(name.clone(), run);
        names.push(name);
    };
    let not_run = match platform.triple {
        _ if platform.is_host() => {
            step("x86_64 wheel".to_owned(), &|| python::test_alone(&wheel()?));
            ""
        }
        "aarch64-unknown-linux-gnu" => {
            step("aarch64 library".to_owned(), &|| library_under_qemu(platform));
            step("aarch64 wheel".to_owned(), &|| wheel_under_qemu(&wheel()?));
            "CUDA, PyTorch"
        }
        "x86_64-pc-windows-gnu" => {
            step("windows library".to_owned(), &|| library_under_wine(platform));
            step("windows command".to_owned(), &|| command_under_wine(platform));
            step("windows wheel".to_owned(), &|| windows_loads(&wheel()?));
            "the Python package, CUDA, PyTorch"
        }
        _ => {
            let (processor, _) = platform.triple.split_once('-').unwrap_or_default();
            step(format!("macos {processor}"), &|| is_for_mac(&wheel()?, platform));
            "anything: it is linked, and looked at"
        }
    };
    let run = names.into_iter().filter_map(|name| Some((steps.outcome(&name)?, name)));
    Tried { platform, run: run.map(|(outcome, name)| (name, outcome)).collect(), not_run }
}

/// What the CPU backend is held to, as on any machine: conformance, random problems, threads.
fn library_under_qemu(platform: &Platform) -> Result<Report> {
    platform.set_up()?;
    let emulator = format!("{} -L {}", qemu()?.display(), arm_system()?.display());
    let mut test = platform.cargo("test")?;
    test.args(["--no-fail-fast", "--package", "msdeform", "--lib", "--tests"]);
    test.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", emulator);
    harness_report(&process::run(&mut test)?)
}

/// The Python package's tests with NumPy alone, without those of dozens of processes, and its command.
fn wheel_under_qemu(wheel: &Path) -> Result<Report> {
    let system = arm_system()?;
    let site = tree::cache().join("arm64-site");
    if site.exists() {
        std::fs::remove_dir_all(&site)?;
    }
    let wheel = wheel.to_string_lossy();
    Uv::new()?.unpack("aarch64-manylinux_2_28", &site, &["numpy", "pytest", &wheel])?;
    let emulated = emulated_python(&system)?;
    let python = |arguments: &[&str]| {
        let mut command = Command::new(&emulated);
        command.args(arguments).env("PYTHONPATH", &site).env("PYTHONDONTWRITEBYTECODE", "1");
        command.current_dir(tree::root().join("bindings/python"));
        command
    };
    let says = capture(&mut python(&["-c", FACTS]))?;
    println!("{}", says.trim());
    ensure!(says.contains("aarch64 neon"), "expected the instructions of ARM");
    let script = site.join("bin/msdeform");
    let version = capture(&mut python(&[&script.to_string_lossy(), "--version"]))?;
    ensure!(version.starts_with("msdeform "), "the command says {version}");
    let tests = ["test_facts.py", "test_first_look.py", "test_numpy.py"];
    let tests = tests.map(|name| format!("tests/{name}"));
    let mut pytest = python(&["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]);
    let count = pytest_count(&process::run(pytest.args(tests))?)?.plus(Count::CHECK);
    Ok(Report { count, note: says.trim().to_owned() })
}

const FACTS: &str = "import platform, msdeform, numpy; \
    print(platform.machine(), msdeform.device_info()['cpu']['instructions'], 'NumPy', numpy.__version__)";

/// A program that is Python for ARM also to the processes that its tests start: no kernel runs the real one.
fn emulated_python(system: &Path) -> Result<PathBuf> {
    let program = system.join("usr/bin/emulated-python");
    let script = format!(
        "#!/bin/sh\nexec '{}' -0 \"$0\" -L '{}' '{}' \"$@\"\n",
        qemu()?.display(),
        system.display(),
        system.join("usr/bin/python3.11").display()
    );
    std::fs::write(&program, script)?;
    run_ok(Command::new("chmod").arg("+x").arg(&program))?;
    Ok(program)
}

fn qemu() -> Result<PathBuf> {
    if on_path(&["qemu-aarch64"]).is_none() {
        setup::apt_install(&["qemu-user"]).context("no qemu for ARM")?;
    }
    on_path(&["qemu-aarch64"]).context("no qemu-aarch64, even after installing qemu-user")
}

/// Debian's C library and Python for ARM, unpacked.
fn arm_system() -> Result<PathBuf> {
    let folder = tree::cache().join("arm64-debian");
    if folder.join("usr/bin/python3.11").exists() {
        return Ok(folder);
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    if on_path(&["mmdebstrap"]).is_none() {
        setup::apt_install(&["mmdebstrap"]).context("no mmdebstrap, which unpacks Debian")?;
    }
    // mmdebstrap makes the folder, not what that lies in.
    std::fs::create_dir_all(tree::cache())?;
    let mut unpack = Command::new("mmdebstrap");
    unpack.args(["--quiet", "--variant=extract", "--architectures=arm64", "--skip=check/qemu"]);
    run_ok(unpack.args(["--include=python3,libstdc++6", "bookworm"]).arg(&folder))?;
    Ok(folder)
}

/// What the CPU backend is held to, the files, the tuning file, and what finds and caches in the CUDA backend.
fn library_under_wine(platform: &Platform) -> Result<Report> {
    platform.set_up()?;
    // The CUDA backend's other tests are for a GPU.
    let chosen: [(&[&str], &[&str]); 2] = [
        (&["msdeform"], &["--lib", "--tests"]),
        (&["msdeform-files", "msdeform-tuning", "msdeform-cuda"], &["--lib"]),
    ];
    let mut count = Count::default();
    for (packages, kinds) in chosen {
        let mut test = platform.cargo("test")?;
        test.arg("--no-fail-fast").args(kinds);
        test.args(packages.iter().flat_map(|package| ["--package", package]));
        count = count.plus(harness_report(&process::run(in_wine(&mut test)?)?)?.count);
    }
    Ok(Report { count, note: format!("{} passed", count.passed) })
}

/// The main commands, from the same sources as the wheel's.
fn command_under_wine(platform: &Platform) -> Result<Report> {
    platform.set_up()?;
    let mut build = platform.cargo("build")?;
    run_ok(build.args(["--package", "msdeform-cli"]))?;
    let program = tree::target().join(platform.triple).join("debug/msdeform.exe");
    let folder = tree::cache().join("wine-files");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let tensors = tree::root().join("docs/examples/tiny_decoder.safetensors");
    std::fs::copy(&tensors, folder.join("tensors.safetensors"))?;
    let verify = ["verify", "--device", "cpu", "--workload", "edge_one_pixel,edge_outside"];
    let run_to = |output| ["run", "tensors.safetensors", "--check", "--output", output];
    let commands: [&[&str]; 6] = [
        &["--version"],
        &["variants"],
        &["workloads"],
        &verify,
        &run_to("output.safetensors"),
        &run_to("NUL"),
    ];
    for arguments in commands {
        let mut command = Command::new(wine()?);
        run_ok(in_wine(command.arg(&program).args(arguments).current_dir(&folder))?)?;
    }
    ensure!(folder.join("output.safetensors").is_file(), "`run` wrote nothing");
    // What exists is kept, with the code that scripts know.
    let mut again = Command::new(wine()?);
    again.arg(&program).args(run_to("output.safetensors")).current_dir(&folder);
    let code = in_wine(&mut again)?.status()?.code();
    ensure!(code == Some(2), "writing over a file ended with {code:?}");
    let count = Count { passed: commands.len() + 1, ..Count::default() };
    Ok(Report { count, note: String::new() })
}

fn wine() -> Result<PathBuf> {
    if on_path(&["wine"]).is_none() {
        setup::apt_install(&["wine", "wine64"]).context("no Wine")?;
    }
    on_path(&["wine"]).context("no wine, even after installing it")
}

/// A command whose Windows programs Wine runs, in a system of their own.
fn in_wine(command: &mut Command) -> Result<&mut Command> {
    command.env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", wine()?);
    of_wine(command);
    let libraries = wine_folder().join("drive_c/windows/system32");
    let random = libraries.join("bcryptprimitives.dll");
    if !random.is_file() {
        // Neither does Wine make more than the last folder.
        std::fs::create_dir_all(tree::cache())?;
        run_ok(of_wine(Command::new(wine()?).args(["wineboot", "--init"])))?;
        let source = tree::cache().join("random_numbers.c");
        std::fs::write(&source, RANDOM_NUMBERS)?;
        let mut compile = Command::new("x86_64-w64-mingw32-gcc");
        compile.args(["-shared", "-O1", "-o"]).arg(&random).arg(&source);
        run_ok(compile.arg("-ladvapi32"))?;
    }
    Ok(command)
}

/// Wine 8, which Debian 12 has, lacks the library that Rust programs take random numbers from on Windows 10.
const RANDOM_NUMBERS: &str = r"
#include <stddef.h>
__declspec(dllimport) unsigned char __stdcall SystemFunction036(void *buffer, unsigned long length);
__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *buffer, size_t length) {
    return SystemFunction036(buffer, (unsigned long)length);
}
";

fn wine_folder() -> PathBuf {
    tree::cache().join("wine")
}

fn of_wine(command: &mut Command) -> &mut Command {
    command.env("WINEPREFIX", wine_folder()).env("WINEDEBUG", "-all");
    // Neither a window nor an installer that asks.
    command.env("WINEDLLOVERRIDES", "mscoree,mshtml=").env("DISPLAY", "")
}

/// Libraries that every Windows has, or that Python brings.
fn is_part_of_windows(library: &str) -> bool {
    const KNOWN: [&str; 16] = [
        "advapi32.dll",
        "bcrypt.dll",
        "bcryptprimitives.dll",
        "combase.dll",
        "kernel32.dll",
        "msvcrt.dll",
        "ntdll.dll",
        "ole32.dll",
        "oleaut32.dll",
        "pdh.dll",
        "powrprof.dll",
        "psapi.dll",
        "python3.dll",
        "shell32.dll",
        "userenv.dll",
        "ws2_32.dll",
    ];
    let library = library.to_ascii_lowercase();
    library.starts_with("api-ms-win-") || KNOWN.contains(&library.as_str())
}

/// Whether the library of a wheel needs nothing that a user's machine may lack, and Wine loads it.
fn windows_loads(wheel: &Path) -> Result<Report> {
    let path = native_library(wheel)?;
    let library = dll::Library::read(&path)?;
    let foreign: Vec<_> = library.imports.keys().filter(|name| !is_part_of_windows(name)).collect();
    ensure!(foreign.is_empty(), "it needs {foreign:?}");
    let folder = path.parent().unwrap_or(&path);
    let loader = library.write_loader(folder)?;
    let mut load = Command::new(wine()?);
    run_ok(in_wine(load.arg(loader).current_dir(folder))?).context("Wine does not load it")?;
    let names = library.imports.get(dll::PYTHON).map_or(0, Vec::len);
    Ok(Report::check(format!(
        "{} libraries, all of Windows or Python; loaded by Wine, with {names} names of Python that do nothing",
        library.imports.len()
    )))
}

/// Whether the library of a wheel is one that macOS would load: for the processor and the system that the wheel's name
/// says, with nothing that a user's machine may lack, and signed.
fn is_for_mac(wheel: &Path, platform: &Platform) -> Result<Report> {
    let path = native_library(wheel)?;
    let bytes = std::fs::read(&path)?;
    let Library { processor, oldest_system, needs, from_anywhere, signature } =
        Library::read(&bytes)?;
    ensure!(platform.triple.starts_with(processor), "it is for {processor}");
    let (major, minor) = oldest_system;
    let tag = format!("macosx_{major}_{minor}_");
    ensure!(platform.wheel_tag.starts_with(&tag), "it is for macOS {major}.{minor} and newer");
    let foreign: Vec<_> = needs.iter().filter(|path| !is_part_of_macos(path)).collect();
    ensure!(!needs.is_empty() && foreign.is_empty(), "it needs {foreign:?}");
    let lost: Vec<_> = from_anywhere.iter().filter(|name| !is_of_python(name)).collect();
    ensure!(!from_anywhere.is_empty() && lost.is_empty(), "no library is named for {lost:?}");
    let signed = match signature {
        Some(range) => {
            let mut check = Command::new(build_tool("python")?);
            check.args(["-c", CHECK_SIGNATURE]).arg(&path).arg(range.start.to_string());
            format!("{} signed pages", capture(&mut check)?.trim())
        }
        // Only Macs with ARM ask for one.
        None if processor == "x86_64" => "not signed".to_owned(),
        None => bail!("it is not signed"),
    };
    let note = format!(
        "{} libraries, all of macOS; {} names of Python; {signed}; linked and not run",
        needs.len(),
        from_anywhere.len()
    );
    Ok(Report::check(note))
}

/// Compares the pages of a file with the hashes in its signature, which has to be right for the system to map them: a library
/// that is stripped after it was signed is not. Prints how many there are.
const CHECK_SIGNATURE: &str = r#"
import hashlib, struct, sys
data, at = open(sys.argv[1], "rb").read(), int(sys.argv[2])
magic, _, count = struct.unpack_from(">III", data, at)
assert magic == 0xFADE0CC0, "no signature where one should be"
blobs = [at + struct.unpack_from(">II", data, at + 12 + 8 * i)[1] for i in range(count)]
directories = [blob for blob in blobs if struct.unpack_from(">I", data, blob)[0] == 0xFADE0C02]
assert directories, "a signature without hashes"
for blob in directories:
    hashes, _, _, pages, limit = struct.unpack_from(">IIIII", data, blob + 16)
    size, kind, _, page = struct.unpack_from(">BBBB", data, blob + 36)
    assert (size, kind) == (32, 2), "hashes of another kind than SHA-256"
    assert limit == at, "it covers %d bytes of %d" % (limit, at)
    for i in range(pages):
        part = data[i << page : min((i + 1) << page, limit)]
        expected = data[blob + hashes + 32 * i :][:32]
        assert hashlib.sha256(part).digest() == expected, "page %d of %d is not what was signed" % (i, pages)
print(pages)
"#;

/// Unpacks a wheel, and finds its library.
fn native_library(wheel: &Path) -> Result<PathBuf> {
    let folder = tree::cache().join("wheel-content");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let mut unpack = Command::new(build_tool("python")?);
    run_ok(unpack.args(["-m", "zipfile", "--extract"]).arg(wheel).arg(&folder))?;
    for name in ["_native.abi3.so", "_native.pyd"] {
        let library = folder.join("msdeform").join(name);
        if library.is_file() {
            return Ok(library);
        }
    }
    bail!("{} has no library", wheel.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_a_compiler_are_told_from_those_of_windows() {
        for name in ["KERNEL32.dll", "api-ms-win-core-synch-l1-2-0.dll", "pdh.dll", "python3.dll"] {
            assert!(is_part_of_windows(name), "{name}");
        }
        for name in ["libgcc_s_seh-1.dll", "libwinpthread-1.dll", "python311.dll", "nvcuda.dll"] {
            assert!(!is_part_of_windows(name), "{name}");
        }
    }
}
