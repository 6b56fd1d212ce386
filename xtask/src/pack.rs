//! `cargo xtask pack`: the kernel pack and its wheel.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda::{CodeStore, DiskCache, KernelPack, PackGroup, encode_pack};
use msdeform_files::Existing;
use msdeform_lab::warm::{PACKED_ARCHITECTURES, Target, pack_groups, packed_kernels, warm};

use crate::environments::OTHER_NVRTC;
use crate::process::run_ok;
use crate::tree;

/// Options of `pack`.
#[derive(Args)]
pub struct PackArgs {
    /// Only these architectures [default: all that are published]
    #[arg(long, value_name = "ARCH", value_delimiter = ',', default_values = PACKED_ARCHITECTURES)]
    arch: Vec<String>,
    /// Kernels compiled side by side [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// The largest pack: users download it.
const LIMIT_BYTES: usize = 15_000_000;

/// Compiles, packs, writes the pack and its wheel under `target/kernels`.
pub fn run(args: &PackArgs) -> Result<ExitCode> {
    let start = Instant::now();
    // A GPU has verified what this version compiles, as the ledger says, and every driver for CUDA 13 loads its code.
    let [nvrtc_13_0, _] = &OTHER_NVRTC;
    let library = nvrtc_13_0.library("libnvrtc.so.")?;
    let compiler = Nvrtc::open(&library)?.version();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut groups = Vec::new();
    for arch in &args.arch {
        // The folder is kept, so that unchanged sources are not compiled again.
        let cache = DiskCache::in_folder(tree::cache().join("kernels").join(arch));
        let nvrtc = Nvrtc::open(&library);
        let target = Target::with_code(arch, CodeStore::with_nvrtc(cache, None, nvrtc))?;
        let kernels = packed_kernels(&target.gpus);
        println!("{arch}: {} kernels, without those that the cache has", kernels.len());
        let warmed = warm(&target, &kernels, args.threads.unwrap_or(cores), &|_| true)?;
        if let Some(failed) = warmed.failed.first() {
            anyhow::bail!("{} {}: {}", failed.variant, failed.unit, failed.error);
        }
        println!(
            "{arch}: {} compiled in {:.0} s, {:.1} MB",
            warmed.compiled,
            warmed.seconds,
            warmed.bytes as f64 / 1e6
        );
        groups.extend(pack_groups(&target, &kernels)?);
    }
    let bytes = encode_pack(compiler, &groups)?;
    let kernels: usize = groups.iter().map(|group| group.kernels.len()).sum();
    println!(
        "{kernels} kernels, {:.2} MB, {:.0} s",
        bytes.len() as f64 / 1e6,
        start.elapsed().as_secs_f64()
    );
    ensure!(
        bytes.len() <= LIMIT_BYTES,
        "the pack has {} bytes, at most {LIMIT_BYTES} are allowed",
        bytes.len()
    );
    let pack = tree::target().join("kernels/kernels.pack");
    check(&pack, &bytes, &groups)?;
    msdeform_files::write(&pack, &bytes, Existing::Replace)?;
    // The Python package `msdeform-kernels` is this one file.
    let version = env!("CARGO_PKG_VERSION");
    run_ok(nvrtc_13_0.sh("python tools/make_kernels_wheel.py")?.arg(&pack).arg(version))?;
    let wheel = format!("msdeform_kernels-{version}-py3-none-any.whl");
    println!("{}", pack.with_file_name(wheel).display());
    Ok(ExitCode::SUCCESS)
}

/// Reads the pack again: it has every kernel as it was compiled.
fn check(path: &Path, bytes: &[u8], groups: &[PackGroup]) -> Result<()> {
    let start = Instant::now();
    let pack = KernelPack::parse(path, bytes.to_vec()).map_err(anyhow::Error::msg)?;
    let opened = start.elapsed();
    for (content, compiled) in groups.iter().flat_map(|group| &group.kernels) {
        let found = pack.find(content).map_err(anyhow::Error::msg)?;
        ensure!(
            found.as_ref() == Some(compiled),
            "a kernel of the pack differs from what was compiled"
        );
    }
    let each = (start.elapsed() - opened) / u32::try_from(groups.len().max(1))?;
    println!("opened in {opened:.1?}; a group of {} unpacked in {each:.1?}", groups.len());
    Ok(())
}
