//! The files of a release beside wheels and crates: the library for C, bills of materials, checksums.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::platforms::{PLATFORMS, build_tool};
use crate::process::{capture, run_ok};
use crate::steps::{Count, Report};
use crate::{c, tree};

/// Builds the library for C into an archive in a folder, with the licences, and compiles a program with what is in that.
/// For old systems, as the wheel: one that is linked on Debian 12 loads on nothing older.
pub fn c_library(released: &str, folder: &Path) -> Result<Report> {
    let platform = &PLATFORMS[0];
    platform.set_up()?;
    let mut build = platform.cargo("build")?;
    run_ok(build.args(["--profile", "dist", "--package", "msdeform-c"]))?;
    let name = format!("msdeform-c-{released}-x86_64-linux");
    let prefix = empty(&tree::cache().join("libraries"))?.join(&name);
    c::install_from(&tree::target().join(platform.triple).join("dist"), released, &prefix)?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        std::fs::copy(tree::root().join(licence), prefix.join(licence))?;
    }
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut pack = Command::new("tar");
    pack.arg("--create").arg("--gzip").arg("--file").arg(&archive);
    pack.args(["--owner=0", "--group=0", "--sort=name"]);
    run_ok(pack.arg("--directory").arg(prefix.parent().unwrap_or(&prefix)).arg(&name))?;
    let passed = try_c_library(&archive, &name)?;
    let note = format!("{} bytes, {passed} programs", std::fs::metadata(&archive)?.len());
    Ok(Report { count: Count { passed, ..Count::default() }, note })
}

/// Compiles the example against an unpacked archive, as its first lines say, and runs it: with the shared library, and with
/// the other inside. Returns how many programs that were.
fn try_c_library(archive: &Path, name: &str) -> Result<usize> {
    c::set_up()?;
    let folder = empty(&tree::cache().join("unpacked-libraries"))?;
    let mut unpack = Command::new("tar");
    unpack.arg("--extract").arg("--gzip").arg("--file").arg(archive);
    run_ok(unpack.arg("--directory").arg(&folder))?;
    let libraries = folder.join(name).join("lib");
    let example = tree::root().join("crates/msdeform-c/examples/attention.c");
    let linked = ["--libs", "--variable=static_libs"];
    for libs in linked {
        let flags = |option| {
            let mut command = Command::new("pkg-config");
            command.env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
            capture(command.args([option, "msdeform"]))
        };
        let (headers, libs) = (flags("--cflags")?, flags(libs)?);
        let program = folder.join("attention");
        let mut compile = Command::new("cc");
        compile.arg("-std=c99").arg(&example);
        compile.args(headers.split_whitespace()).args(libs.split_whitespace());
        run_ok(compile.args(["-lm", "-ldl", "-o"]).arg(&program))?;
        run_ok(Command::new(&program).env("LD_LIBRARY_PATH", &libraries))?;
    }
    Ok(linked.len())
}

/// A folder without what was in it.
fn empty(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

/// Puts the bill of materials of each wheel, which maturin writes into it, beside it.
pub fn write_bills(folder: &Path) -> Result<Report> {
    let wheels: Vec<PathBuf> = files_in(folder)?
        .into_iter()
        .filter(|file| file.extension() == Some("whl".as_ref()))
        .collect();
    for wheel in &wheels {
        let mut extract = Command::new(build_tool("python")?);
        let bill = capture(extract.args(["-c", EXTRACT_BILL]).arg(wheel))?;
        ensure!(bill.contains("CycloneDX"), "{} has no bill of materials", wheel.display());
        std::fs::write(wheel.with_extension("cyclonedx.json"), bill)?;
    }
    Ok(Report::check(format!("of {} wheels", wheels.len())))
}

const EXTRACT_BILL: &str = "import sys, zipfile; archive = zipfile.ZipFile(sys.argv[1]); \
    names = [name for name in archive.namelist() if '.dist-info/sboms/' in name and name.endswith('.json')]; \
    sys.stdout.write(archive.read(names[0]).decode())";

/// Writes `SHA256SUMS` of everything else in a folder, as `sha256sum --check` reads it.
pub fn write_checksums(folder: &Path) -> Result<Report> {
    const SUMS: &str = "SHA256SUMS";
    let mut files = files_in(folder)?;
    // Of a part that was made before.
    files.retain(|file| !file.ends_with(SUMS));
    let names = files.iter().filter_map(|file| file.file_name());
    let sums = capture(Command::new("sha256sum").arg("--").args(names).current_dir(folder))
        .context("sha256sum")?;
    std::fs::write(folder.join(SUMS), sums)?;
    run_ok(Command::new("sha256sum").args(["--check", "--quiet", SUMS]).current_dir(folder))?;
    Ok(Report::check(format!("{} files", files.len())))
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_of_everything_but_themselves_however_often_they_are_written() {
        let folder = empty(&tree::cache().join("checksums-test")).unwrap();
        for name in ["a.whl", "b.crate"] {
            std::fs::write(folder.join(name), name).unwrap();
            write_checksums(&folder).unwrap();
        }
        let sums = std::fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
        let names: Vec<_> =
            sums.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(names, ["a.whl", "b.crate"]);
    }
}
