//! What a kernel pack is made of.

use std::collections::{BTreeMap, BTreeSet};

use msdeform::{ATTENTION, DType, FROM_OFFSETS, Gradients, Mode, Problem, ReferenceKind};
use msdeform_cuda::{DeviceProps, PackGroup};

use super::{Target, WarmError};
use crate::models::{
    MODEL_SHAPES, ModelShape, Scope, Specialisation, WITH_REFERENCES, is_thin, specialisations_of,
};

/// What a published pack is for.
pub const PACKED_ARCHITECTURES: [&str; 6] =
    ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];

/// What of an architecture belongs into a pack: everything that may be chosen, on any of its GPUs, for models with 8 heads
/// of 32 channels, which nearly all have, forward and for all gradients. Deterministic gradients, a part of the gradients,
/// other heads and images of which a level is one pixel high are compiled at run time.
pub fn packed_kernels(gpus: &[DeviceProps]) -> Vec<Specialisation> {
    let of_calls = |problems: Vec<Problem>, gradients: Gradients| {
        let (modes, gradients) = (vec![Mode::Fast], vec![gradients]);
        let usual = problems.into_iter().filter(|problem| !is_thin(problem));
        specialisations_of(gpus, usual, &Scope { modes, gradients, ..Scope::default() })
    };
    let standard = MODEL_SHAPES.iter().filter(|shape| (shape.heads, shape.channels) == (8, 32));
    let (mut plain, mut fused, mut trained) = (Vec::new(), Vec::new(), Vec::new());
    for model in standard {
        plain.extend(model.problems(&ATTENTION));
        if model.has_fused_layers {
            // A layer that asks for nearest pixels is not replaced.
            let (mut decoder, of) = (model.decoder.to_vec(), *model);
            decoder.retain(|rule| !rule.is_nearest());
            fused.extend(ModelShape { decoder: &decoder, ..of }.problems(&FROM_OFFSETS));
            // Boxes come from another layer or stage, and no gradient goes through them.
            decoder.retain(|rule| rule.kind() == ReferenceKind::Point);
            trained.extend(ModelShape { decoder: &decoder, ..of }.problems(&FROM_OFFSETS));
        }
    }
    let mut found = of_calls(plain, Gradients::ALL);
    found.extend(of_calls(fused, Gradients::ALL));
    found.extend(of_calls(trained, WITH_REFERENCES));
    let mut known = BTreeSet::new();
    found.retain(|kernel| known.insert((kernel.variant.spec.id, kernel.unit.clone())));
    found
}

/// The kernels as groups of a pack: those of one operator together, of single precision and of half, as a process needs
/// them. Apart by every format they would take a third more: those of `f16` and `bf16` are nearly the same.
pub fn pack_groups(
    target: &Target,
    kernels: &[Specialisation],
) -> Result<Vec<PackGroup>, WarmError> {
    let mut groups: BTreeMap<(bool, bool), PackGroup> = BTreeMap::new();
    for kernel in kernels {
        let code = target.code().obtain(kernel.variant, &kernel.unit, &target.arch)?;
        let problem = &kernel.problem;
        let group = groups
            .entry((problem.offsets().is_some(), problem.dtype() == DType::F32))
            .or_insert_with(|| PackGroup { arch: target.arch.clone(), kernels: Vec::new() });
        group.kernels.push((code.recipe.content(), code.compiled));
    }
    Ok(groups.into_values().collect())
}

#[cfg(test)]
mod tests {
    use crate::Workload;
    use crate::workload::Sizes;
    use msdeform::{Operator, ValueLayout};
    use msdeform_cuda::nvrtc::Nvrtc;
    use msdeform_cuda::{CodeOrigin, CodeStore, encode_pack};
    use msdeform_cuda::{DiskCache, Error};

    use super::*;
    use crate::models::specialisations;

    /// A model's calls at their own sizes, of every operator.
    fn calls_of_models() -> Vec<Problem> {
        let names = ["ddetr_enc", "ddetr_dec", "dino_dec", "rtdetr_dec"];
        let mut problems = Vec::new();
        for workload in names.map(|name| Workload::named(name).unwrap()) {
            for batch in [1, 2, 3, 16] {
                let sizes = Sizes { batch: Some(batch), ..Sizes::default() };
                for dtype in DType::FAST {
                    let layout = ValueLayout::Interleaved;
                    let problem = |operator| workload.problem_of(operator, dtype, layout, sizes);
                    problems.extend(Operator::ALL.map(|operator| problem(operator).unwrap()));
                }
            }
        }
        problems
    }

    /// The usual gradients of a call, as a layer asks for them.
    fn of_training() -> Scope {
        let gradients = vec![Gradients::ALL];
        Scope { modes: vec![Mode::Fast], gradients, ..Scope::default() }
    }

    #[test]
    fn a_pack_serves_all_gpus_of_an_architecture() {
        for arch in PACKED_ARCHITECTURES {
            let gpus = DeviceProps::of_architecture(arch);
            let all = packed_kernels(&gpus);
            assert!((700..800).contains(&all.len()), "{arch}: {}", all.len());
            let units: BTreeSet<_> = all.iter().map(|k| (k.variant.spec.id, &k.unit)).collect();
            assert_eq!(units.len(), all.len(), "none twice");
            let check = |needed: &[Specialisation], of: &str| {
                for kernel in needed {
                    let unit = (kernel.variant.spec.id, &kernel.unit);
                    assert!(units.contains(&unit), "{of}: {}", kernel.name());
                }
            };
            // For every number of multiprocessors.
            let between =
                DeviceProps { multiprocessors: gpus[0].multiprocessors - 6, ..gpus[0].clone() };
            for gpu in [&gpus[0], &gpus[gpus.len() - 1], &between] {
                check(&packed_kernels(std::slice::from_ref(gpu)), &gpu.name);
            }
            let needed = specialisations_of(&gpus, calls_of_models(), &of_training());
            assert!(needed.iter().any(|kernel| kernel.problem.offsets().is_some()));
            check(&needed, arch);
        }
    }

    /// The kernels of a pack for any GPU are among those that the ledger requires.
    #[test]
    fn nothing_is_packed_that_a_ledger_run_would_not_verify() {
        let h200 = DeviceProps::h200();
        let lists = Operator::ALL.map(|operator| specialisations(&h200, operator));
        let listed = lists.iter().flatten().map(|k| (k.variant.spec.id, &k.unit));
        let listed: BTreeSet<_> = listed.collect();
        for arch in PACKED_ARCHITECTURES {
            for kernel in packed_kernels(&DeviceProps::of_architecture(arch)) {
                let unit = (kernel.variant.spec.id, &kernel.unit);
                assert!(listed.contains(&unit), "{arch}: {} {}", kernel.problem, kernel.name());
            }
        }
    }

    /// The hashes in a pack are those of the sources: what was packed is what a process of these sources asks for.
    #[test]
    fn a_process_without_a_compiler_finds_packed_kernels() {
        let Some(nvrtc) = Nvrtc::for_tests() else { return };
        let compiler = nvrtc.version();
        let folder = tempfile::tempdir().unwrap();
        let target = Target::of_architecture("sm_80", DiskCache::in_folder(folder.path()));
        let target = target.unwrap();
        let all = packed_kernels(&target.gpus);
        // The smallest of both directions, which compile fastest; and everything of a decoder's fused step.
        let mut few: Vec<Specialisation> = Vec::new();
        for (variant, step) in [("fwd_split_gather", ""), ("bwd_tile_sort", "offsets")] {
            let is = |k: &&Specialisation| k.variant.spec.id == variant && k.unit.step == step;
            few.push(all.iter().find(is).unwrap().clone());
        }
        let decoder = Workload::named("rtdetr_dec").unwrap();
        let (layout, sizes) = (ValueLayout::Interleaved, Sizes::default());
        let decoder = decoder.problem_of(&FROM_OFFSETS, DType::F16, layout, sizes).unwrap();
        let gpu = std::slice::from_ref(&target.gpus[0]);
        few.extend(specialisations_of(gpu, [decoder], &of_training()));
        assert!((5..8).contains(&few.len()), "{}", few.len());
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
