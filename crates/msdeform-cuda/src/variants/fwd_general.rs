//! Accepts everything; what the dispatcher falls back to.

use msdeform::{Direction, VariantSpec};

use super::{
    Call, Configuration, Knob, KnobChoices, OURS, Specialise, Variant, offset_source, output_dtype,
};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::kernel_source;

/// See `kernels/fwd_general.cu`.
pub(crate) static FWD_GENERAL: Variant = Variant {
    takes_offsets: true,
    takes_other_outputs: true,
    knobs: KNOBS,
    ..Variant::new(&SPEC, kernel_source!("fwd_general.cu"), |_| Ok(()), configure)
};

static SPEC: VariantSpec = VariantSpec {
    id: "fwd_general",
    direction: Direction::Forward,
    idea: "a power-of-two group of lanes per output row, sample metadata once per group by shuffles",
    why: "any channels, levels, points, strides, sizes and alignment: nothing is ever refused",
    ..OURS
};

/// Of a block.
const THREADS: u32 = 128;

/// The largest load of one instruction.
const PACKET_BYTES: usize = 16;

static KNOBS: &[Knob] = &[Knob {
    name: "VECTOR",
    values: &[1, 2, 4, 8],
    meaning: "neighbouring channels of a lane; divides channels, strides and alignment",
}];

fn configure(call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
    let bytes = call.problem.dtype().size_bytes();
    let output_bytes = call.problem.output_dtype().size_bytes();
    let channels = call.problem.channels();
    let fits = |vector: usize| {
        vector * bytes.max(output_bytes) <= PACKET_BYTES
            && channels.is_multiple_of(vector)
            && call.strides.all_multiples_of(vector)
    };
    let vector = match knobs.get("VECTOR") {
        Some(chosen) => {
            usize::try_from(chosen).ok().filter(|&vector| fits(vector)).ok_or_else(|| {
                format!(
                    "VECTOR={chosen} does not fit {channels} channels of {bytes} bytes; leave VECTOR out"
                )
            })?
        }
        None => [8, 4, 2].into_iter().find(|&vector| fits(vector)).unwrap_or(1),
    };
    let lanes = channels.div_ceil(vector).next_power_of_two().min(32);
    let rows_per_block = u64::from(THREADS) / lanes as u64;
    // The kernel strides over what a grid cannot hold.
    let blocks = call.rows().div_ceil(rows_per_block).min(i32::MAX as u64);
    let mut derived = Derived::of_count("lanes", lanes)?;
    offset_source::derive(call, false, &mut derived)?;
    Ok(Configuration {
        specialise: Specialise::Formats,
        knobs: vec![("VECTOR", vector as i64)],
        pipeline: LaunchGeometry::linear(blocks as u32, THREADS).into(),
        value_alignment: vector * bytes,
        output_alignment: Some(vector * output_bytes),
        sampling_alignment: call.problem.sampling_dtype().size_bytes(),
        constants: vec![("THREADS", i64::from(THREADS)), output_dtype(call)],
        derived,
        ..Configuration::default()
    })
}

#[cfg(test)]
mod tests {
    use msdeform::{DType, Problem, ProblemBuilder, ValueStrides};

    use super::*;
    use crate::driver::DeviceProps;

    fn configured(problem: ProblemBuilder, strides: Option<ValueStrides>) -> Configuration {
        let (problem, device) = (problem.build().unwrap(), DeviceProps::h200());
        let strides = strides.unwrap_or_else(|| ValueStrides::packed(&problem));
        let call = Call { strides, ..Call::new(&problem, &device) };
        FWD_GENERAL.configure(&call, &KnobChoices::default()).unwrap()
    }

    #[test]
    fn lanes_and_vectors_follow_channels_format_and_strides() {
        let base = Problem::builder().queries(10).heads(2).levels([(4, 4)]);
        for (dtype, channels, vector, lanes) in [
            (DType::F16, 32, 8, 4),
            (DType::F32, 32, 4, 8),
            (DType::F16, 33, 1, 32),
            (DType::F16, 1, 1, 1),
            (DType::Bf16, 12, 4, 4),
            (DType::F16, 512, 8, 32),
        ] {
            let configuration = configured(base.clone().dtype(dtype).channels(channels), None);
            assert_eq!(configuration.knobs, [("VECTOR", vector)], "{dtype} {channels}");
            assert_eq!(configuration.derived.get("lanes"), Some(lanes), "{dtype} {channels}");
            let rows_per_block = 128 / lanes as u32;
            assert_eq!(configuration.geometry().unwrap().grid[0], 20u32.div_ceil(rows_per_block));
        }
        let odd = ValueStrides { batch: 0, head: 32, pixel: 70 };
        let configuration = configured(base.dtype(DType::F16).channels(32), Some(odd));
        assert_eq!(configuration.knobs, [("VECTOR", 2)]);
    }

    #[test]
    fn a_knob_that_does_not_divide_the_channels_is_refused() {
        let problem = Problem::builder().channels(33).queries(1).levels([(4, 4)]).build().unwrap();
        let device = DeviceProps::h200();
        let variant = &FWD_GENERAL;
        let knobs = KnobChoices::new(variant, &[("VECTOR".to_owned(), 4)]).unwrap();
        let reason = variant.configure(&Call::new(&problem, &device), &knobs).unwrap_err();
        assert!(reason.contains("33 channels"), "{reason}");
    }
}
