//! Without a GPU every function that needs one says so; with one the examples `cuda*.c` compute on it.

use std::ffi::c_void;

use msdeform_c::cuda::*;
use msdeform_c::problem::msdeform_problem;
use msdeform_c::status::msdeform_status;

use crate::given::{Handle, Refusal, assert_refused, description, offsets, problem, sized, told};

fn refuse_options(
    problem: &Handle<msdeform_problem>,
    cases: &[Refusal<msdeform_cuda_plan_options>],
) {
    assert_refused(cases, |change| {
        let mut options = sized();
        change(&mut options);
        let mut plan = std::ptr::dangling_mut();
        // SAFETY: what is wrong is refused before it is followed; the problem is alive.
        let answer = told(|text| unsafe {
            let none = std::ptr::null();
            msdeform_cuda_plan_create(none, problem.raw, &raw const options, &raw mut plan, text)
        });
        assert!(plan.is_null(), "{}", answer.1);
        answer
    });
}

#[test]
fn a_device_that_is_not_there_is_a_typed_error() {
    let mut engine = std::ptr::dangling_mut();
    // SAFETY: a place for the handle.
    let (status, text) = told(|text| unsafe {
        msdeform_cuda_engine_create(4096, std::ptr::null(), &raw mut engine, text)
    });
    assert_eq!(status, msdeform_status::CudaUnavailable, "{text}");
    assert!(text.contains("CUDA") && engine.is_null(), "{text}");
    // SAFETY: as above.
    let (status, text) = told(|text| unsafe {
        msdeform_cuda_engine_create(-1, std::ptr::null(), &raw mut engine, text)
    });
    assert_eq!(status, msdeform_status::UnknownConstant, "{text}");
}

#[test]
fn the_count_is_zero_or_an_error_where_there_is_none() {
    let mut count = 77;
    // SAFETY: a place for the number.
    let (status, text) = told(|text| unsafe { msdeform_cuda_device_count(&raw mut count, text) });
    match status {
        msdeform_status::Ok => assert!(count < 1024, "{count}"),
        status => assert_eq!((status, count), (msdeform_status::CudaUnavailable, 0), "{text}"),
    }
}

#[test]
fn null_handles_are_refused_before_anything_else() {
    let handle = problem(&description(|_| {}));
    let mut plan = std::ptr::dangling_mut();
    let (options, tensors) = (sized(), sized());
    // SAFETY: null, or alive.
    unsafe {
        let (status, text) = told(|text| {
            let none = std::ptr::null();
            msdeform_cuda_plan_create(none, handle.raw, &raw const options, &raw mut plan, text)
        });
        assert_eq!((status, text.as_str()), (msdeform_status::NullPointer, "`engine` is null"));
        assert!(plan.is_null());
        let stream: *mut c_void = std::ptr::null_mut();
        let (status, text) =
            told(|text| msdeform_cuda_launch(std::ptr::null(), stream, &raw const tensors, text));
        assert_eq!((status, text.as_str()), (msdeform_status::NullPointer, "`plan` is null"));
        let (status, _) =
            told(|text| msdeform_cuda_plan_get_info(std::ptr::null(), std::ptr::null_mut(), text));
        assert_eq!(status, msdeform_status::NullPointer);
        msdeform_cuda_plan_destroy(std::ptr::null_mut());
        msdeform_cuda_engine_destroy(std::ptr::null_mut());
    }
}

/// Options are looked at first, so that what is wrong with them is found without a GPU too.
#[test]
fn options_that_make_no_sense_are_refused_with_or_without_a_gpu() {
    use msdeform_status as Status;
    static STRIDES: [i64; 3] = [1, 1, 1];
    let cases: [Refusal<msdeform_cuda_plan_options>; 12] = [
        (|o| o.direction = 2, Status::UnknownConstant, "`direction` is 2"),
        (|o| o.gradients = 16, Status::UnknownConstant, "`gradients` is 16"),
        (|o| o.gradients = -1, Status::UnknownConstant, "`gradients` is -1"),
        (|o| o.gradients = 8, Status::UnknownConstant, "from offsets"),
        (|o| o.deterministic = 2, Status::UnknownConstant, "`deterministic` is 2"),
        (|o| o.pointer_checks = 3, Status::UnknownConstant, "`pointer_checks` is 3"),
        (|o| o.workspace = -1, Status::UnknownConstant, "`workspace` is -1"),
        (|o| o.variant = c"fwd_nobody".as_ptr(), Status::UnknownConstant, "fwd_nobody"),
        (|o| o.variant = c"\xff".as_ptr(), Status::UnknownConstant, "no UTF-8"),
        (|o| o.struct_size = 8, Status::StructSize, "sizeof(msdeform_cuda_plan_options)"),
        (
            |o| o.value_strides = STRIDES.as_ptr().wrapping_byte_add(1),
            Status::Misaligned,
            "`value_strides`",
        ),
        (
            |o| o.logit_strides = STRIDES.as_ptr(),
            Status::BadStrides,
            "`logit_strides` is given, but the problem has no offsets",
        ),
    ];
    let handle = problem(&description(|_| {}));
    refuse_options(&handle, &cases);
}

/// What is null is packed, and a program that was compiled before there were such strides says nothing about them.
#[test]
fn strides_of_offsets_may_be_given_where_there_are_offsets() {
    static STRIDES: [i64; 2] = [0, 96];
    let rule = offsets(|_| {});
    let handle = problem(&description(|given| given.offsets = &raw const rule));
    let cases: [Refusal<msdeform_cuda_plan_options>; 4] = [
        (|o| o.offset_strides = STRIDES.as_ptr(), msdeform_status::NullPointer, "`engine` is null"),
        (|o| o.gradients = 8, msdeform_status::NullPointer, "`engine` is null"),
        (
            |o| o.reference_strides = STRIDES.as_ptr().wrapping_byte_add(1),
            msdeform_status::Misaligned,
            "`reference_strides`",
        ),
        (
            |o| {
                o.struct_size = std::mem::offset_of!(msdeform_cuda_plan_options, reference_strides);
                o.reference_strides = STRIDES.as_ptr().wrapping_byte_add(1);
            },
            msdeform_status::NullPointer,
            "`engine` is null",
        ),
    ];
    refuse_options(&handle, &cases);
}
