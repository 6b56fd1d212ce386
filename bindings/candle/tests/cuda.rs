//! Both operators and the layer on a GPU.
//!
//! Built with the feature `cuda`; `cargo test --features cuda -- --ignored` runs them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may fail, and helpers of tests too"
)]

mod support;

use candle_core::{DType, Device, Result, Tensor};
use support::suite::{attend, plain};

fn gpu() -> Device {
    Device::new_cuda(0).expect("a GPU")
}

support::suite::test_on!(
    gpu(),
    #[ignore = "needs a GPU"]
    output_and_gradients_are_right_in_every_dtype,
    #[ignore = "needs a GPU"]
    from_offsets_output_and_all_four_gradients_are_right,
    #[ignore = "needs a GPU"]
    only_the_inputs_that_are_tracked_have_gradients,
    #[ignore = "needs a GPU"]
    references_of_one_image_or_query_serve_all,
    #[ignore = "needs a GPU"]
    tensors_may_lie_anywhere,
    #[ignore = "needs a GPU"]
    images_and_queries_of_references_offsets_and_logits_may_lie_anywhere,
    #[ignore = "needs a GPU"]
    calls_from_many_threads_are_the_same,
    #[ignore = "needs a GPU"]
    a_checkpoint_gives_what_transformers_gives,
    #[ignore = "needs a GPU"]
    an_encoder_layer_learns_and_comes_back_from_its_file,
);

#[test]
#[ignore = "needs a GPU"]
fn tensors_on_two_devices_and_formats_of_the_processor_are_refused() -> Result<()> {
    let refused = |tensors: &[Tensor]| -> String {
        attend(tensors).expect_err("a device or a dtype that is not computed").to_string()
    };
    let mut tensors = plain(&gpu(), DType::F32)?;
    tensors[1] = tensors[1].to_device(&Device::Cpu)?;
    let words = refused(&tensors);
    assert!(words.starts_with("`sampling_locations` is on Cpu, `value` on Cuda"), "{words}");
    let words = refused(&plain(&gpu(), DType::F64)?);
    assert_eq!(words, "`value` is F64, expected F32 or F16 or BF16; convert it with `to_dtype`");
    Ok(())
}
