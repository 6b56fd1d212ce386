//! One thread per output element: the baseline of the forward ladder.

use msdeform::{Direction, VariantSpec};

use crate::sources::headers;
use msdeform_cuda::variants::{
    Call, Configuration, KnobChoices, OURS, Specialise, Variant, check_32_bit_indices,
    check_inline_levels,
};
use msdeform_cuda::{LaunchGeometry, kernel_source};

/// See `kernels/fwd_original.cu`.
pub(crate) static FWD_ORIGINAL: Variant = Variant {
    headers,
    ..Variant::new(&SPEC, kernel_source!("fwd_original.cu"), supports, configure)
};

static SPEC: VariantSpec = VariantSpec {
    id: "fwd_original",
    direction: Direction::Forward,
    origin: "guide (002): original",
    idea: "one thread per output element, scalar loads",
    why: "the kernel of 2018-2020 that every public implementation copies: the baseline",
    ..OURS
};

/// The figure that the seed document states for its own version.
pub(crate) const CLAIM: &str = "0.5 TFLOP/s, 1.0x";

/// As in the original.
const THREADS: u32 = 1024;

fn supports(call: &Call<'_>) -> Result<(), String> {
    check_inline_levels(call.problem)?;
    check_32_bit_indices(&[
        ("value", call.strides.extent(call.problem)),
        ("sampling_locations", call.problem.locations_len()),
        ("output", call.problem.output_len()),
    ])
}

fn configure(call: &Call<'_>, _: &KnobChoices) -> Result<Configuration, String> {
    let elements = call.problem.output_len() as u64;
    let blocks = u32::try_from(elements.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX);
    Ok(Configuration {
        specialise: Specialise::Formats,
        pipeline: LaunchGeometry::linear(blocks, THREADS).into(),
        value_alignment: call.problem.dtype().size_bytes(),
        sampling_alignment: call.problem.sampling_dtype().size_bytes(),
        ..Configuration::default()
    })
}

#[cfg(test)]
mod tests {
    use msdeform::Problem;

    use msdeform_cuda::DeviceProps;

    use super::*;

    #[test]
    fn sizes_past_32_bits_are_refused_by_name() {
        let device = DeviceProps::h200();
        let problem = Problem::builder().batch(64).heads(8).channels(32).queries(1 << 18);
        let problem = problem.levels([(8, 8)]).build().unwrap();
        let variant = &FWD_ORIGINAL;
        let error = variant.check(&Call::new(&problem, &device)).unwrap_err().to_string();
        assert!(error.contains("fwd_original") && error.contains("32-bit"), "{error}");
    }
}
