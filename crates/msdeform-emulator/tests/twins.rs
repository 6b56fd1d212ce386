//! Every wrapper of `kernels/intrinsics.cuh` has a twin, so that the emulator can run every kernel that uses it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its shared functions"
)]

mod common;

use std::collections::BTreeSet;

use msdeform_cuda::Recipe;
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda::sources::{HEADERS, SourceFile};

/// The functions a header defines: the word before the first parenthesis of a definition, and the first
/// argument of a macro that defines some.
fn functions(text: &str) -> BTreeSet<String> {
    let word_before = |text: &str| {
        let head = text.split('(').next().unwrap_or_default();
        head.rsplit(|c: char| !(c.is_alphanumeric() || c == '_'))
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let mut names = BTreeSet::new();
    for line in text.lines().map(str::trim_start) {
        if let Some((_, definition)) = line.split_once("MSDA_DEVICE ") {
            names.insert(word_before(definition));
        } else if line.starts_with("MSDA_") {
            let argument = line.split('(').nth(1).and_then(|rest| rest.split([',', ')']).next());
            names.extend(argument.map(str::to_owned));
        }
    }
    // Macro parameters and the types that some macros are given.
    names.retain(|name| {
        name.starts_with(char::is_lowercase)
            && !["unsigned", "int", "float", "long long"].contains(&&**name)
    });
    names
}

#[test]
fn every_wrapper_has_a_twin() {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap();
    // Headers that intrinsics.cuh includes; others (clusters, textures) have no twins.
    let umbrella = read(common::kernels_folder().join("intrinsics.cuh"));
    let parts = umbrella.lines().filter_map(|line| line.strip_prefix("#include \"ptx_"));
    let part = |rest: &str| {
        read(common::kernels_folder().join(format!("ptx_{}", rest.trim_end_matches('"'))))
    };
    let device: String = parts.map(part).collect();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let host = read(folder.join("cpp/intrinsics_emulated.hpp"));
    let (device, host) = (functions(&device), functions(&host));
    assert!(device.len() > 50, "only {} wrappers found: {device:?}", device.len());
    // The host spells out what the device header generates: mma_f16 there is mma_f16_16x8x16 here.
    let has_twin = |name: &&String| {
        host.iter().any(|twin| twin == *name || twin.starts_with(&format!("{name}_16x8")))
    };
    let missing: Vec<&String> = device.iter().filter(|name| !has_twin(name)).collect();
    assert!(missing.is_empty(), "no twin in intrinsics_emulated.hpp: {missing:?}");
}

/// The device compiler accepts the test kernels too, with every wrapper.
#[test]
fn the_test_kernels_compile_for_gpus() {
    let Some(nvrtc) = Nvrtc::for_tests() else { return };
    macro_rules! kernels {
        ($($name:literal)*) => {
            [$(SourceFile { name: $name, text: include_str!(concat!("../test_kernels/", $name)) }),*]
        };
    }
    let everywhere = kernels!["warp_exchange.cu" "block_sum.cu" "memory_wrappers.cu"
        "copy_pipeline.cu" "matrix_product.cu" "number_formats.cu" "two_steps.cu"];
    let since_hopper = kernels!["specialised_warps.cu" "tensor_tile.cu" "faults.cu"];
    let mut headers = HEADERS.to_vec();
    headers.extend(kernels!["test_params.inc"]);
    let mut compiled = 0;
    for arch in ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"] {
        let hopper = if arch.starts_with("sm_8") { &[][..] } else { &since_hopper };
        for kernel in everywhere.iter().chain(hopper) {
            let options = ["-DMSDA_TEST_BFLOAT=1".to_owned()];
            let result = Recipe::of_source(*kernel, &headers, arch, &options).compile(&nvrtc);
            assert!(result.is_ok(), "{}", result.unwrap_err());
            compiled += 1;
        }
    }
    assert_eq!(compiled, 5 * 7 + 3 * 3);
}
