//! The machine code of every kernel that was compiled, searched for results that are read too early.
//!
//! Only the code after a slow result is disassembled, once for all kernels with equal code. That is a few thousand
//! instructions; disassembling all of them would take as long as compiling.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cubin::{kernels, windows};
use super::early_reads::{first_read, is_late, latency};
use super::early_starts;
use super::entries::Entry;
use super::listing;

/// Code after slow results and its places, by architecture.
#[derive(Default)]
pub struct MachineCode {
    windows: BTreeMap<String, BTreeMap<Vec<u128>, String>>,
    pub kernels: usize,
    /// Kernels whose launch may start before the one before it is done.
    pub overlapping: usize,
    /// Those that touch memory before they wait, or do not wait.
    pub early_starts: Vec<String>,
}

/// The result of the search.
#[derive(Debug, Default)]
pub struct Findings {
    pub results: usize,
    /// By architecture, the earliest reader of a result that nothing overwrites.
    pub least_cycles: BTreeMap<String, u32>,
    pub early: Vec<String>,
}

impl MachineCode {
    /// Takes the code of a cubin; `origin` says how it was made.
    pub fn add(&mut self, entry: &Entry, cubin: &[u8], origin: &str) -> Result<(), String> {
        let kernels = kernels(cubin).filter(|kernels| !kernels.is_empty());
        for (kernel, code) in kernels.ok_or_else(|| format!("{origin}: no kernel in the cubin"))? {
            self.kernels += 1;
            let arch = &entry.arch;
            if entry.overlapping.contains(&kernel) {
                self.overlapping += 1;
                let fault = early_starts::fault(&kernel, &code);
                let text = |fault| format!("{kernel} for {arch}, {origin}: {fault}");
                self.early_starts.extend(fault.map(text));
            }
            let of_arch = self.windows.entry(arch.clone()).or_default();
            for window in windows(&code) {
                let place = || format!("{kernel} for {arch}, {origin}");
                of_arch.entry(window.to_vec()).or_insert_with(place);
            }
        }
        Ok(())
    }

    /// Looks for results that are read too early.
    pub fn check(&self, disassembler: &Path) -> Result<Findings, String> {
        let mut findings = Findings::default();
        for (arch, windows) in &self.windows {
            let code: Vec<u128> = windows.keys().flatten().copied().collect();
            let mut instructions = &disassemble(disassembler, arch, &code)?[..];
            if instructions.len() != code.len() {
                return Err(format!("{} of {} instructions read", instructions.len(), code.len()));
            }
            for (window, place) in windows {
                let (own, rest) = instructions.split_at(window.len());
                instructions = rest;
                findings.results += 1;
                if !is_late(&own[0]) {
                    return Err(format!("{place}: `{}` is no late result", own[0].text()));
                }
                let Some(read) = first_read(own) else { continue };
                if !read.is_overwritten {
                    let least = findings.least_cycles.entry(arch.clone()).or_insert(read.cycles);
                    *least = (*least).min(read.cycles);
                }
                if read.cycles < latency(arch) {
                    findings.early.push(format!("{place}: {read}"));
                }
            }
        }
        Ok(findings)
    }
}

fn disassemble(
    disassembler: &Path,
    arch: &str,
    code: &[u128],
) -> Result<Vec<listing::Instruction>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", disassembler.display());
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all(&bytes).map_err(failed)?;
    let mut command = Command::new(disassembler);
    let arch = arch.replace("sm_", "SM");
    command.args(["--binary", &arch, "-hex"]).arg(file.path());
    let output = command.output().map_err(failed)?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    listing::parse(&String::from_utf8_lossy(&output.stdout))
}

/// The disassembler: `MSDEFORM_NVDISASM`, or the one of the Python environment that NVRTC is taken from.
pub fn disassembler() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("MSDEFORM_NVDISASM") {
        return Some(named.into());
    }
    let library = PathBuf::from(std::env::var_os("VIRTUAL_ENV")?).join("lib");
    let pythons = std::fs::read_dir(library).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found = pythons.map(|python| python.join("site-packages/nvidia/cu13/bin/nvdisasm"));
    found.find(|path| path.is_file())
}
