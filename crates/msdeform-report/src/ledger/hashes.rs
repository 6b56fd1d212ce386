//! What a verification is of, as hashes: the text that is compiled, its macros, and how kernels are launched.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

use msdeform::{BackwardCall, DType, Gradients, Mode, Offsets, Operator, Problem};
use msdeform_cuda::kernel_text::{KernelText, Selection};
use msdeform_cuda::sources::SourceFile;
use msdeform_cuda::variants::{Call, Configuration, KnobChoices, Unit, Variant};
use msdeform_cuda::{COMMON_OPTIONS, DeviceProps};
use msdeform_cuda_lab::REGISTRY;

/// The texts that a variant is compiled from: those of this program, or those of an earlier commit.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) source: SourceFile,
    /// The headers that the kernel may include.
    pub(super) headers: Vec<SourceFile>,
    /// Hashes of its code: thousands of kernels are few texts.
    known: Mutex<HashMap<Selection, blake3::Hash>>,
}

impl Sources {
    /// The texts in this program, which are hashed once.
    pub(super) fn of(variant: &Variant) -> &'static Self {
        static TODAY: LazyLock<BTreeMap<&str, Sources>> = LazyLock::new(|| {
            let of = |variant: &Variant| Sources::new(variant.source, (variant.headers)().to_vec());
            REGISTRY.iter().map(|variant| (variant.spec.id, of(variant))).collect()
        });
        &TODAY[variant.spec.id]
    }

    pub(super) fn new(source: SourceFile, headers: Vec<SourceFile>) -> Self {
        Self { source, headers, known: Mutex::default() }
    }

    /// Stands for the code of all steps and operators, and for the common options of the compiler.
    pub(super) fn hash(&self) -> String {
        self.code(&Selection::Everything).to_hex().to_string()
    }

    /// Stands for one kernel: the code and the macros that it is compiled with.
    pub(super) fn unit_hash(&self, unit: &Unit) -> String {
        let mut parts = Parts::default();
        parts.add(self.code(&Selection::of_defines(&unit.defines)).to_hex().as_str());
        unit.defines.iter().for_each(|define| parts.add(define));
        // 96 bits tell some thousands of kernels apart.
        parts.finish()[..24].to_owned()
    }

    /// Stands for a variant with one dtype: the code, and how it is compiled and launched for a fixed list of problems.
    pub(super) fn fingerprint(
        &self,
        variant: &Variant,
        dtype: DType,
        operator: &Operator,
    ) -> String {
        let mut parts = Parts::default();
        parts.add(&format!("{:?}", variant.spec.numerics));
        // Many problems are compiled to the same kernels.
        let mut known: HashMap<Unit, String> = HashMap::new();
        for sample in samples(variant, dtype, operator) {
            let Some((launches, units)) = sample else {
                parts.add("refused");
                continue;
            };
            parts.add(&launches);
            for unit in units {
                parts.add(known.entry(unit).or_insert_with_key(|unit| self.unit_hash(unit)));
            }
        }
        parts.finish()
    }

    /// Stands for a text and the options that all kernels are compiled with.
    fn code(&self, selection: &Selection) -> blake3::Hash {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(selection.clone()).or_insert_with_key(|selection| {
            let mut parts = Parts::default();
            parts.add(self.source.name);
            let text = KernelText::new(self.source, &self.headers, selection);
            text.code().chain(COMMON_OPTIONS.iter().copied()).for_each(|part| parts.add(part));
            parts.0.finalize()
        })
    }
}

/// What a variant does in the calls of its fingerprint: how it launches, and which kernels. `None` where it refuses.
pub(super) fn samples<'a>(
    variant: &'a Variant,
    dtype: DType,
    operator: &'a Operator,
) -> impl Iterator<Item = Option<(String, Vec<Unit>)>> + 'a {
    let device = DeviceProps::h200();
    sample_problems(variant, dtype, operator).into_iter().flat_map(move |problem| {
        let sample = |call: Call<'_>| {
            variant.check(&call).ok()?;
            let found = variant.configure(&call, &KnobChoices::default()).ok()?;
            Some((spelled_out(&found), found.units(variant, &call)))
        };
        sample_calls(variant, &problem, &device).into_iter().map(sample).collect::<Vec<_>>()
    })
}

/// Whether a variant computes an operator, in any dtype.
pub(super) fn takes(variant: &Variant, operator: &Operator) -> bool {
    let mut dtypes = variant.spec.dtypes.iter();
    dtypes.any(|&dtype| samples(variant, dtype, operator).any(|sample| sample.is_some()))
}

/// A configuration as its fingerprint has it.
fn spelled_out(asked: &Configuration) -> String {
    let Configuration { specialise, knobs, constants, pipeline, derived, .. } = asked;
    let Configuration { value_alignment, sampling_alignment, .. } = asked;
    let Configuration { preamble, without_preamble, .. } = asked;
    format!(
        "{specialise:?} {knobs:?} {constants:?} {pipeline:?} {derived:?} {value_alignment} {sampling_alignment} \
         {preamble:?} {without_preamble:?}"
    )
}

/// What a hash is made of, each part with its length, so that no two lists read the same.
#[derive(Default)]
struct Parts(blake3::Hasher);

impl Parts {
    fn add(&mut self, text: &str) {
        self.0.update(&(text.len() as u64).to_le_bytes());
        self.0.update(text.as_bytes());
    }

    fn finish(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

/// The ways in which a variant may be called for a problem: forward in one, backward in both modes and for gradients
/// that take different steps.
fn sample_calls<'a>(
    variant: &Variant,
    problem: &'a Problem,
    device: &'a DeviceProps,
) -> Vec<Call<'a>> {
    let call = Call::in_direction(variant.spec.direction, problem, device);
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

/// Problems that show how a variant launches: few and many queries, common and odd channel counts; of the fused operator
/// with every kind of rule.
fn sample_problems(variant: &Variant, dtype: DType, operator: &Operator) -> Vec<Problem> {
    let plain = plain_problems(variant, dtype);
    if *operator == msdeform::ATTENTION {
        return plain;
    }
    let (points, boxes) = (Offsets::from_points(), Offsets::from_boxes());
    let rules = [points, points.anchors(4), boxes, boxes.one_for_all_levels(), boxes.nearest()];
    let fused = |plain: &Problem| {
        let built = rules.map(|rule| {
            // References in the other of the two dtypes that there may be.
            let references =
                if plain.sampling_dtype() == plain.dtype() { DType::F32 } else { plain.dtype() };
            let builder = plain.to_builder().sampling_dtype(plain.dtype()).offsets(rule);
            builder.reference_dtype(references).build()
        });
        built.into_iter().flatten().collect::<Vec<_>>()
    };
    plain.iter().flat_map(fused).collect()
}

fn plain_problems(variant: &Variant, dtype: DType) -> Vec<Problem> {
    let mut problems = Vec::new();
    for &layout in variant.spec.layouts {
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

#[cfg(test)]
mod tests {
    use msdeform::{ATTENTION, FROM_OFFSETS};
    use msdeform_cuda_lab::REGISTRY;
    use msdeform_cuda_lab::sources::headers;

    use super::*;

    #[test]
    fn a_fingerprint_depends_on_code_and_not_on_comments() {
        let source = |text| SourceFile { name: "x.cu", text };
        let of = |text| Sources::new(source(text), headers().to_vec()).hash();
        assert_eq!(of("int a; // why\n"), of("int a;\n\n"));
        assert_ne!(of("int a;"), of("int b;"));
        let formats = REGISTRY
            .iter()
            .flat_map(|&variant| variant.spec.dtypes.iter().map(move |&dtype| (variant, dtype)));
        let prints: std::collections::BTreeSet<String> = formats
            .clone()
            .map(|(variant, dtype)| Sources::of(variant).fingerprint(variant, dtype, &ATTENTION))
            .collect();
        assert_eq!(prints.len(), formats.count());
        let kernels = REGISTRY.iter().map(|variant| variant.source);
        for file in headers().iter().copied().chain(kernels) {
            assert!(!file.text.contains("/*"), "{}: use line comments", file.name);
        }
    }

    #[test]
    fn the_two_operators_have_different_fingerprints() {
        let fused = REGISTRY.iter().filter(|variant| takes(variant, &FROM_OFFSETS));
        let ids: Vec<&str> = fused.clone().map(|variant| variant.spec.id).collect();
        let expected = [
            "fwd_general",
            "fwd_tile_gather",
            "fwd_split_gather",
            "bwd_general",
            "bwd_tile_sort",
            "bwd_level_sort",
        ];
        assert_eq!(ids, expected);
        for &variant in fused {
            let print = |operator| Sources::of(variant).fingerprint(variant, DType::F16, operator);
            assert_ne!(print(&ATTENTION), print(&FROM_OFFSETS));
        }
    }
}
