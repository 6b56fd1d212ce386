//! What a verification is of: hashes of sources, options and launches.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use msdeform::{DType, Mode, Problem};
use msdeform_cuda::Gradients;
use msdeform_cuda::driver::DeviceProps;
use msdeform_cuda::jit::{COMMON_OPTIONS, headers_for_given_samples};
use msdeform_cuda::sources::where_samples_are_given;
use msdeform_cuda::variants::{BackwardCall, Call, Configuration, KnobChoices, Variant};
use msdeform_cuda_lab::REGISTRY;
use msdeform_cuda_lab::preamble::{LevelTextures, TileMaps};

/// Stands for all that a verification depends on: the kernel and the headers it includes (without
/// comments and blank lines, so that words can be improved freely, and without what is compiled only where samples follow
/// from offsets), the compiler's options, and, for a
/// fixed list of problems, the macros and the launch that the variant asks for.
#[must_use]
pub fn fingerprint(variant: &dyn Variant, dtype: DType) -> String {
    let mut parts = Parts::of_sources(variant);
    let mut part = |text: &str| parts.add(text);
    part(&format!("{:?}", variant.spec().numerics));
    let device = DeviceProps::h200();
    for problem in sample_problems(variant, dtype) {
        for call in sample_calls(variant, &problem, &device) {
            let asked = match variant.check(&call).map_err(|error| error.to_string()) {
                Ok(()) => variant.configure(&call, &KnobChoices::default()),
                Err(refused) => Err(refused),
            };
            match asked {
                Ok(asked) => part(&format!("{} {:?}", spelled_out(&asked), asked.defines(&call))),
                Err(_) => part("refused"),
            }
        }
    }
    parts.hash()
}

/// A configuration as its fingerprint has it.
fn spelled_out(asked: &Configuration) -> String {
    let preamble = asked.preamble.as_ref().map(|recipe| -> &dyn Any { recipe.as_ref() });
    let tile_maps: Option<&TileMaps> = preamble.and_then(|recipe| recipe.downcast_ref());
    let textures: Option<&LevelTextures> = preamble.and_then(|recipe| recipe.downcast_ref());
    let Configuration { specialise, knobs, constants, pipeline, derived, .. } = asked;
    let Configuration { value_alignment, sampling_alignment, .. } = asked;
    let Configuration { without_preamble, persisting_value, .. } = asked;
    format!(
        "{specialise:?} {knobs:?} {constants:?} {pipeline:?} {derived:?} {value_alignment} {sampling_alignment} \
         {tile_maps:?} {textures:?} {without_preamble:?} {persisting_value}"
    )
}

/// Stands for the sources of a variant and the compiler's common options: with the macros, all that a specialisation is
/// made from.
pub(super) fn hash_sources(variant: &dyn Variant) -> &'static str {
    static HASHES: LazyLock<BTreeMap<&str, String>> = LazyLock::new(|| {
        let hash = |variant: &&'static dyn Variant| Parts::of_sources(*variant).hash();
        REGISTRY.iter().map(|variant| (variant.spec().id, hash(variant))).collect()
    });
    HASHES.get(variant.spec().id).map_or("", String::as_str)
}

/// What a hash is made of, each with its length, so that no two lists read the same.
struct Parts(blake3::Hasher);

impl Parts {
    fn of_sources(variant: &dyn Variant) -> Self {
        let mut parts = Self(blake3::Hasher::new());
        let source = variant.source();
        let headers = headers_for_given_samples(source, variant.headers());
        for file in std::iter::once(source).chain(headers) {
            parts.add(file.name);
            parts.add(&without_comments(&where_samples_are_given(file.text)));
        }
        COMMON_OPTIONS.iter().for_each(|option| parts.add(option));
        parts
    }

    fn add(&mut self, text: &str) {
        self.0.update(&(text.len() as u64).to_le_bytes());
        self.0.update(text.as_bytes());
    }

    fn hash(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

/// The ways in which a variant may be asked to do a problem: forward in one, backward in both modes and
/// for gradients that take different steps.
fn sample_calls<'a>(
    variant: &dyn Variant,
    problem: &'a Problem,
    device: &'a DeviceProps,
) -> Vec<Call<'a>> {
    let call = Call::in_direction(variant.spec().direction, problem, device);
    let Some(ordinary) = call.backward else { return vec![call] };
    let of_value = Gradients { value: true, ..Gradients::NONE };
    let of_samples = Gradients { value: false, ..Gradients::ALL };
    let mut calls = Vec::new();
    for mode in Mode::ALL {
        for gradients in [Gradients::ALL, of_value, of_samples] {
            let backward = Some(BackwardCall { gradients, mode, ..ordinary });
            calls.push(Call { backward, ..call });
        }
    }
    calls
}

/// Problems that show how a variant launches: few and many queries, common and odd channel counts.
fn sample_problems(variant: &dyn Variant, dtype: DType) -> Vec<Problem> {
    let mut problems = Vec::new();
    for &layout in variant.spec().layouts {
        for sampling in [dtype, DType::F32] {
            for channels in [16, 32, 33, 64] {
                for (queries, points) in [(300, 4), (15_422, 8)] {
                    let built = Problem::builder()
                        .batch(2)
                        .heads(8)
                        .channels(channels)
                        .queries(queries)
                        .levels([(92, 160), (46, 80), (23, 40), (12, 20)])
                        .points(points)
                        .layout(layout)
                        .dtype(dtype)
                        .sampling_dtype(sampling)
                        .build();
                    problems.extend(built);
                }
            }
        }
    }
    problems
}

/// Kernels use line comments only.
fn without_comments(text: &str) -> String {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or("").trim_end())
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use msdeform_cuda_lab::sources::headers;

    use super::*;

    #[test]
    fn the_fingerprint_sees_code_and_not_words() {
        assert_eq!(without_comments("int a; // why\n\n// words\nint b;\n"), "int a;\nint b;");
        let formats = REGISTRY
            .iter()
            .flat_map(|&variant| variant.spec().dtypes.iter().map(move |&dtype| (variant, dtype)));
        let prints: std::collections::BTreeSet<String> =
            formats.clone().map(|(variant, dtype)| fingerprint(variant, dtype)).collect();
        assert_eq!(prints.len(), formats.count());
        let kernels = REGISTRY.iter().map(|variant| variant.source());
        for file in headers().iter().copied().chain(kernels) {
            assert!(!file.text.contains("/*"), "{}: use line comments", file.name);
        }
    }
}
