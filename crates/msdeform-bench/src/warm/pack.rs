//! What a kernel pack is made of.

use std::collections::BTreeMap;

use msdeform::{DType, Mode};
use msdeform_cuda::Gradients;
use msdeform_cuda::driver::DeviceProps;
use msdeform_cuda::jit::PackGroup;

use super::{Target, WarmError};
use crate::models::{MODEL_SHAPES, Scope, Shape, Specialisation, specialisations_of};

/// What a published pack is for.
pub const PACKED_ARCHITECTURES: [&str; 6] =
    ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];

/// What of an architecture belongs into a pack: everything that may be chosen, on any of its GPUs, for models with 8 heads
/// of 32 channels, which nearly all have, forward and for all gradients. Deterministic gradients, a part of the gradients
/// and other heads are compiled by whoever wants them.
#[must_use]
pub fn packed_kernels(gpus: &[DeviceProps]) -> Vec<Specialisation> {
    let standard = MODEL_SHAPES.iter().filter(|shape| (shape.heads, shape.channels) == (8, 32));
    let problems = standard.flat_map(|shape| Shape::from(shape).problems());
    let scope = Scope { modes: vec![Mode::Fast], ..Scope::default() };
    let mut found = specialisations_of(gpus, problems, &scope);
    found.retain(|kernel| kernel.backward.is_none_or(|call| call.gradients == Gradients::ALL));
    found
}

/// The kernels as groups of a pack: those of one format together, as a process needs them.
///
/// # Errors
/// What does not compile; those that [`super::warm`] compiled do.
pub fn pack_groups(
    target: &Target,
    kernels: &[Specialisation],
) -> Result<Vec<PackGroup>, WarmError> {
    let mut groups: BTreeMap<(&str, &str), PackGroup> = BTreeMap::new();
    for kernel in kernels {
        let code = target.code().obtain(kernel.variant, &kernel.unit, &target.arch)?;
        let name = |dtype: DType| dtype.name();
        let formats = (name(kernel.problem.dtype()), name(kernel.problem.sampling_dtype()));
        let group = groups
            .entry(formats)
            .or_insert_with(|| PackGroup { arch: target.arch.clone(), kernels: Vec::new() });
        group.kernels.push((code.recipe.content(), code.compiled));
    }
    Ok(groups.into_values().collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use msdeform_cuda::jit::{CodeOrigin, CodeStore, encode_pack};
    use msdeform_cuda::nvrtc::Nvrtc;
    use msdeform_cuda::{DiskCache, Error};

    use super::*;

    /// Every GPU of an architecture finds what it may choose, whatever its number of multiprocessors.
    #[test]
    fn a_pack_has_about_five_hundred_kernels_of_an_architecture_and_serves_all_of_its_gpus() {
        for arch in PACKED_ARCHITECTURES {
            let gpus = DeviceProps::of_architecture(arch);
            let all = packed_kernels(&gpus);
            assert!((450..650).contains(&all.len()), "{arch}: {}", all.len());
            let units: BTreeSet<_> = all.iter().map(|k| (k.variant.spec().id, &k.unit)).collect();
            let between =
                DeviceProps { multiprocessors: gpus[0].multiprocessors - 6, ..gpus[0].clone() };
            for gpu in [&gpus[0], &gpus[gpus.len() - 1], &between] {
                for kernel in packed_kernels(std::slice::from_ref(gpu)) {
                    let unit = (kernel.variant.spec().id, &kernel.unit);
                    assert!(units.contains(&unit), "{}: {}", gpu.name, kernel.name());
                }
            }
        }
    }

    /// The hashes in a pack are those of the sources: what was packed is what a process of these sources asks for.
    #[test]
    fn a_process_without_a_compiler_finds_what_was_packed_of_these_sources() {
        let Some(nvrtc) = Nvrtc::for_tests() else { return };
        let compiler = nvrtc.version();
        let folder = tempfile::tempdir().unwrap();
        let target = Target::of_architecture("sm_80", DiskCache::in_folder(folder.path()));
        let target = target.unwrap();
        let all = packed_kernels(&target.gpus);
        // The smallest of both directions, which compile fastest.
        let mut few: Vec<Specialisation> = Vec::new();
        for (variant, step) in [("fwd_split_gather", ""), ("bwd_tile_sort", "offsets")] {
            let is = |k: &&Specialisation| k.variant.spec().id == variant && k.unit.step == step;
            few.push(all.iter().find(is).unwrap().clone());
        }
        let groups = pack_groups(&target, &few).unwrap();
        let path = folder.path().join("kernels.pack");
        std::fs::write(&path, encode_pack(compiler, &groups).unwrap()).unwrap();

        let cache = DiskCache::nowhere().with_pack(path);
        let missing = Error::MissingNvrtc { searched: "nowhere".to_owned() };
        let process = CodeStore::with_nvrtc(cache, Some(compiler), Err(missing));
        for kernel in &few {
            let code = process.obtain(kernel.variant, &kernel.unit, "sm_80").unwrap();
            assert_eq!((code.origin, code.compiler), (CodeOrigin::Pack, compiler));
            assert!(code.compiled.cubin.starts_with(b"\x7fELF"));
            assert!(!code.compiled.log.is_empty(), "registers are in the log");
        }
        let other = all.iter().find(|kernel| !few.iter().any(|few| few.unit == kernel.unit));
        let other = other.unwrap();
        assert!(process.obtain(other.variant, &other.unit, "sm_80").is_err());
    }
}
