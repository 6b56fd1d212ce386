//! Both operators on a CPU: what every device must compute, and calls that only the library's reference describes.

#![allow(clippy::unwrap_used, reason = "tests may fail, and helpers of tests too")]

mod support;

use candle_core::{DType, Device, Result, Var};
use msdeform::{Problem, reference};
use msdeform_candle::{Levels, Offsets, ms_deform_attn, ms_deform_attn_from_offsets};
use support::{assert_close, elements, random};

support::suite::test_on!(
    Device::Cpu,
    output_and_gradients_are_right_in_every_dtype,
    from_offsets_output_and_all_four_gradients_are_right,
    only_the_inputs_that_are_tracked_have_gradients,
    references_of_one_image_or_query_serve_all,
    tensors_may_lie_anywhere,
    images_and_queries_of_references_offsets_and_logits_may_lie_anywhere,
    calls_from_many_threads_are_the_same,
);

#[test]
fn levels_may_have_points_and_places_of_their_own() -> Result<()> {
    let levels = [(4, 5), (3, 2)];
    let problem = Problem::builder()
        .heads(3)
        .channels(8)
        .queries(11)
        .levels(levels.map(|(height, width)| (height as u64, width as u64)))
        .points_per_level([3, 1])
        .level_starts([7u64, 0])
        .spatial(30)
        .build()
        .unwrap();
    let value = random(1, &problem.value_shape(), 1.0, 0.0, DType::F32)?;
    let locations = random(2, &problem.locations_shape(), 0.6, 0.5, DType::F32)?;
    let weights = random(3, &problem.weights_shape(), 1.0, 0.0, DType::F32)?;
    let levels = Levels::new(levels).points([3, 1]).starts([7, 0]);
    let output = ms_deform_attn(&value, &levels, &locations, &weights)?;
    let expected =
        reference::forward(&problem, &elements(&value), &elements(&locations), &elements(&weights));
    assert_close("output", &elements(&output), &expected, 1e-5);
    Ok(())
}

#[test]
fn sizes_of_zero_compute_nothing_and_are_no_error() -> Result<()> {
    let zeros = |shape: &[usize]| Var::zeros(shape, DType::F32, &Device::Cpu);
    for (batch, queries, channels) in [(0, 3, 4), (2, 0, 4), (2, 3, 0)] {
        let value = zeros(&[batch, 6, 2, channels])?;
        let locations = zeros(&[batch, queries, 2, 1, 2, 2])?;
        let weights = zeros(&[batch, queries, 2, 1, 2])?;
        let output = ms_deform_attn(&value, [(2, 3)], &locations, &weights)?;
        assert_eq!(output.dims(), [batch, queries, 2 * channels]);
        output.backward()?;
        let references = zeros(&[1, 1, 1, 2])?;
        for around in [references.as_tensor(), &references.detach()] {
            let (offsets, logits, rule) = (&locations, &weights, Offsets::from_points());
            let output =
                ms_deform_attn_from_offsets(&value, [(2, 3)], around, offsets, logits, rule)?;
            assert_eq!(output.dims(), [batch, queries, 2 * channels]);
            output.backward()?;
        }
    }
    Ok(())
}
