//! What a verification is of: hashes of sources, options and launches.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use msdeform::{DType, Mode, Offsets, Problem};
use msdeform_cuda::Gradients;
use msdeform_cuda::driver::DeviceProps;
use msdeform_cuda::jit::{
    COMMON_OPTIONS, headers_for_following_samples, headers_for_given_samples,
};
use msdeform_cuda::sources::{where_samples_are_given, where_samples_follow};
use msdeform_cuda::variants::{BackwardCall, Call, Configuration, KnobChoices, Variant};
use msdeform_cuda_lab::REGISTRY;
use msdeform_cuda_lab::preamble::{LevelTextures, TileMaps};

use super::Samples;

/// Stands for all that a verification depends on: the kernel and the headers it includes (without
/// comments and blank lines, so that words can be improved freely, and without what is compiled only where samples come
/// from elsewhere), the compiler's options, and, for a
/// fixed list of problems, the macros and the launch that the variant asks for.
#[must_use]
pub fn fingerprint(variant: &dyn Variant, dtype: DType, samples: Samples) -> String {
    let mut parts = Parts::of_sources(variant, samples);
    let mut part = |text: &str| parts.add(text);
    part(&format!("{:?}", variant.spec().numerics));
    let device = DeviceProps::h200();
    for problem in sample_problems(variant, dtype, samples) {
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
pub(super) fn hash_sources(variant: &dyn Variant, samples: Samples) -> &'static str {
    type Hashes = BTreeMap<(&'static str, Samples), String>;
    static HASHES: LazyLock<Hashes> = LazyLock::new(|| {
        let both = |variant: &&'static dyn Variant| {
            let variant = *variant;
            let hash = move |samples| Parts::of_sources(variant, samples).hash();
            Samples::ALL.map(|samples| ((variant.spec().id, samples), hash(samples)))
        };
        REGISTRY.iter().flat_map(both).collect()
    });
    HASHES.get(&(variant.spec().id, samples)).map_or("", String::as_str)
}

/// Whether a variant takes samples that come from there, in any format.
pub(super) fn takes(variant: &dyn Variant, samples: Samples) -> bool {
    let device = DeviceProps::h200();
    let takes = |problem: &Problem| {
        let direction = variant.spec().direction;
        variant.check(&Call::in_direction(direction, problem, &device)).is_ok()
    };
    let mut dtypes = variant.spec().dtypes.iter();
    dtypes.any(|&dtype| sample_problems(variant, dtype, samples).iter().any(takes))
}

/// What a hash is made of, each with its length, so that no two lists read the same.
struct Parts(blake3::Hasher);

impl Parts {
    fn of_sources(variant: &dyn Variant, samples: Samples) -> Self {
        let mut parts = Self(blake3::Hasher::new());
        let source = variant.source();
        let (headers, compiled): (_, fn(&str) -> String) = match samples {
            Samples::Given => {
                (headers_for_given_samples(source, variant.headers()), where_samples_are_given)
            }
            Samples::FromOffsets => {
                (headers_for_following_samples(source, variant.headers()), where_samples_follow)
            }
        };
        for file in std::iter::once(source).chain(headers) {
            parts.add(file.name);
            parts.add(&without_comments(&compiled(file.text)));
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
        let with_references = Gradients { references: true, ..Gradients::ALL };
        let further = problem.offsets().map(|_| with_references);
        for gradients in [Gradients::ALL, of_value, of_samples].into_iter().chain(further) {
            let backward = Some(BackwardCall { gradients, mode, ..ordinary });
            calls.push(Call { backward, ..call });
        }
    }
    calls
}

/// Problems that show how a variant launches: few and many queries, common and odd channel counts; from offsets by every
/// kind of rule.
fn sample_problems(variant: &dyn Variant, dtype: DType, samples: Samples) -> Vec<Problem> {
    let given = given_problems(variant, dtype);
    if samples == Samples::Given {
        return given;
    }
    let (points, boxes) = (Offsets::from_points(), Offsets::from_boxes());
    let rules = [points, points.anchors(4), boxes, boxes.one_for_all_levels(), boxes.nearest()];
    let follows = |given: &Problem| {
        let builder = given.to_builder();
        let built = rules.map(|rule| {
            // References in the other of the two formats that there may be.
            let references =
                if given.sampling_dtype() == given.dtype() { DType::F32 } else { given.dtype() };
            let sampling = given.dtype();
            let follows = builder.clone().sampling_dtype(sampling).offsets(rule);
            follows.reference_dtype(references).build()
        });
        built.into_iter().flatten().collect::<Vec<_>>()
    };
    given.iter().flat_map(follows).collect()
}

fn given_problems(variant: &dyn Variant, dtype: DType) -> Vec<Problem> {
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
    use msdeform_cuda_lab::sources::{SourceFile, headers};

    use super::*;

    #[test]
    fn the_fingerprint_sees_code_and_not_words() {
        assert_eq!(without_comments("int a; // why\n\n// words\nint b;\n"), "int a;\nint b;");
        let formats = REGISTRY
            .iter()
            .flat_map(|&variant| variant.spec().dtypes.iter().map(move |&dtype| (variant, dtype)));
        let prints: std::collections::BTreeSet<String> = formats
            .clone()
            .map(|(variant, dtype)| fingerprint(variant, dtype, Samples::Given))
            .collect();
        assert_eq!(prints.len(), formats.count());
        let kernels = REGISTRY.iter().map(|variant| variant.source());
        for file in headers().iter().copied().chain(kernels) {
            assert!(!file.text.contains("/*"), "{}: use line comments", file.name);
        }
    }

    #[test]
    fn what_is_compiled_for_offsets_alone_is_part_of_their_hash_and_of_no_other() {
        let followers = REGISTRY.iter().filter(|variant| takes(**variant, Samples::FromOffsets));
        let ids: Vec<&str> = followers.clone().map(|variant| variant.spec().id).collect();
        let expected = [
            "fwd_general",
            "fwd_tile_gather",
            "fwd_split_gather",
            "bwd_general",
            "bwd_tile_sort",
            "bwd_level_sort",
        ];
        assert_eq!(ids, expected);
        for variant in followers {
            let (id, source) = (variant.spec().id, variant.source());
            let has_own = |headers: Vec<SourceFile>| {
                headers.iter().any(|header| header.name.starts_with("offset_"))
            };
            assert!(has_own(headers_for_following_samples(source, variant.headers())), "{id}");
            assert!(!has_own(headers_for_given_samples(source, variant.headers())), "{id}");
            assert_ne!(
                hash_sources(*variant, Samples::Given),
                hash_sources(*variant, Samples::FromOffsets),
                "{id}"
            );
        }
    }
}
