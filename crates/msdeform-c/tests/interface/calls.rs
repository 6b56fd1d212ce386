//! What the functions compute is what the library's reference does, in every format and on every way that C can say.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use msdeform::{DType, Offsets, Problem, Role, ValueLayout};
use msdeform_c::cpu::*;
use msdeform_c::problem::*;
use msdeform_c::status::msdeform_status;
use msdeform_c::tensors::msdeform_tensors;
use msdeform_lab::Buffer;

use crate::given::*;

#[test]
fn every_format_and_layout_is_computed_as_the_reference_does() {
    let formats = [
        (msdeform_dtype::F32, DType::F32),
        (msdeform_dtype::F16, DType::F16),
        (msdeform_dtype::Bf16, DType::Bf16),
        (msdeform_dtype::F64, DType::F64),
    ];
    let layouts = [
        (msdeform_layout::Interleaved, ValueLayout::Interleaved),
        (msdeform_layout::HeadMajor, ValueLayout::HeadMajor),
    ];
    for (code, dtype) in formats {
        for (layout_code, layout) in layouts {
            let handle = problem(&description(|given| {
                given.dtype = code as i32;
                given.layout = layout_code as i32;
            }));
            let like = like_description().dtype(dtype).layout(layout);
            Call::new(like.build().unwrap()).run(&plan(&handle, None));
        }
    }
}

#[test]
fn everything_that_a_description_can_say_arrives() {
    let (starts, points, sizes) = ([20i64, 0], [1i64, 3], [3i64, 1, 2, 3]);
    let rule = offsets(|rule| {
        rule.kind = msdeform_reference_kind::Box as i32;
        rule.reference_of = msdeform_reference_of::Anchor as i32;
        rule.anchors = 2;
        rule.offset_scale = 0.75;
        rule.raw_weights = 1;
        rule.nearest = 1;
    });
    let given = description(|given| {
        given.level_starts = starts.as_ptr();
        given.points_per_level = points.as_ptr();
        given.spatial = 90;
        given.layout = msdeform_layout::HeadMajorPadded as i32;
        given.level_sizes = sizes.as_ptr();
        given.dtype = msdeform_dtype::F16 as i32;
        given.sampling_dtype = msdeform_dtype::Bf16 as i32;
        given.reference_dtype = msdeform_dtype::F32 as i32;
        given.output_dtype = msdeform_dtype::F32 as i32;
        given.offsets = &raw const rule;
    });
    let expected = Problem::builder()
        .batch(2)
        .heads(2)
        .channels(3)
        .queries(4)
        .levels([(3, 1), (2, 3)])
        .level_starts([20, 0])
        .points_per_level([1, 3])
        .spatial(90)
        .layout(ValueLayout::HeadMajorPadded)
        .dtype(DType::F16)
        .sampling_dtype(DType::Bf16)
        .reference_dtype(DType::F32)
        .output_dtype(DType::F32)
        .offsets(Offsets::from_boxes().anchors(2).offset_scale(0.75).raw_weights().nearest())
        .build()
        .unwrap();
    let handle = problem(&given);
    let mut message = Message::new(256);
    // SAFETY: a live handle.
    let status = unsafe { msdeform_problem_text(handle.raw, &raw mut message.raw) };
    assert_eq!((status, message.text()), (msdeform_status::Ok, expected.to_string()));
    assert!(message.text().contains("boxes by 2 anchors times 0.75, raw weights, nearest"));

    for (role, of) in [
        (msdeform_role::Value, Role::Value),
        (msdeform_role::ReferencePoints, Role::References),
        (msdeform_role::GradAttentionLogits, Role::GradLogits),
        (msdeform_role::Output, Role::Output),
    ] {
        let info = tensor_info(&handle, role);
        assert_eq!((info.bytes, info.elements), (expected.bytes_of(of), expected.len_of(of)));
        assert_eq!(info.shape.iter().product::<i64>() as usize, expected.len_of(of));
    }
    let info = tensor_info(&handle, msdeform_role::Output);
    assert_eq!((info.rank, info.shape), (3, [2, 4, 6, 1, 1]));
    assert_eq!(info.dtype, msdeform_dtype::F32 as i32);
}

#[test]
fn from_offsets_both_directions_are_computed_as_the_reference_does() {
    for (kind, as_rust) in [
        (msdeform_reference_kind::Point, Offsets::from_points()),
        (msdeform_reference_kind::Box, Offsets::from_boxes()),
    ] {
        let rule = offsets(|rule| {
            rule.kind = kind as i32;
            rule.reference_of = msdeform_reference_of::Query as i32;
        });
        let handle = problem(&description(|given| given.offsets = &raw const rule));
        let like = like_description().offsets(as_rust.one_for_all_levels());
        Call::new(like.build().unwrap()).run(&plan(&handle, None));
    }
}

#[test]
fn threads_instructions_and_shared_workers_change_no_result() {
    let handle = problem(&description(|_| {}));
    let workers = workers(2);
    let none: msdeform_cpu_options = sized();
    let scalar = msdeform_isa::Scalar as i32;
    for (options, threads) in [
        (msdeform_cpu_options { threads: 1, isa: scalar, ..none }, 1),
        (msdeform_cpu_options { threads: 3, ..none }, 3),
        (msdeform_cpu_options { workers: workers.raw, isa: scalar, ..none }, 2),
    ] {
        let plan = plan(&handle, Some(&options));
        Call::usual().run(&plan);
        let mut info: msdeform_cpu_plan_info = sized();
        // SAFETY: a live handle and a struct of its size.
        must(|text| unsafe { msdeform_cpu_plan_get_info(plan.raw, &raw mut info, text) });
        assert_eq!(info.threads, threads);
        assert!(options.isa == 0 || info.isa == options.isa);
        assert!(info.workspace_bytes > 0);
    }
}

/// Starts all threads but the calling one; `context` counts the calls.
unsafe extern "C" fn on_new_threads(
    context: *mut c_void,
    count: i64,
    work: unsafe extern "C" fn(*mut c_void),
    job: *mut c_void,
) {
    struct Job(*mut c_void);
    // SAFETY: the library lets any thread work on it.
    unsafe impl Sync for Job {}
    // SAFETY: the test passes a counter.
    let calls = unsafe { &*context.cast::<AtomicUsize>() };
    let job = &Job(job);
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(move || {
                calls.fetch_add(1, Ordering::Relaxed);
                // SAFETY: what the library passed, before this function returns.
                unsafe { work(job.0) };
            });
        }
    });
}

/// Leaves all work to the calling thread.
unsafe extern "C" fn on_no_thread(
    _: *mut c_void,
    _: i64,
    _: unsafe extern "C" fn(*mut c_void),
    _: *mut c_void,
) {
}

#[test]
fn threads_of_the_caller_change_no_result_and_stay_out_of_small_calls() {
    let many = 4096;
    for (queries, run, expected) in [
        (many, on_new_threads as unsafe extern "C" fn(_, _, _, _), 3),
        (many, on_no_thread, 0),
        (4, on_new_threads, 0),
    ] {
        let handle = problem(&description(|given| given.queries = queries));
        let plan = plan(&handle, None);
        let queries = usize::try_from(queries).unwrap();
        let mut call = Call::new(like_description().queries(queries).build().unwrap());
        let tensors = call.tensors();
        let calls = AtomicUsize::new(0);
        let context = (&raw const calls).cast_mut().cast();
        let threads = msdeform_threads { count: 3, context, run: Some(run), ..sized() };
        // SAFETY: a live plan, tensors of the sizes that they say, threads that return when they are done.
        must(|text| unsafe {
            msdeform_cpu_forward_on(plan.raw, &raw const threads, &raw const tensors, text)
        });
        let (_, output) = call.results.iter().find(|(role, _)| *role == Role::Output).unwrap();
        call.assert_right(Role::Output, &output.to_f64());
        assert_eq!(calls.into_inner(), expected);
    }
}

#[test]
fn workers_and_problems_may_end_before_their_plans() {
    let handle = problem(&description(|_| {}));
    let workers = workers(2);
    let options = msdeform_cpu_options { workers: workers.raw, ..sized() };
    let plan = plan(&handle, Some(&options));
    drop((handle, workers));
    Call::usual().run(&plan);
}

#[test]
fn only_gradients_with_a_place_are_computed() {
    let plan = plan(&problem(&description(|_| {})), None);
    let mut call = Call::usual();
    let len = call.case.problem.weights_len();
    let mut larger = Buffer::poisoned(DType::F32, len + 16);
    let tensors = msdeform_tensors {
        grad_value: NO_OUTPUT,
        grad_sampling_locations: NO_OUTPUT,
        grad_attention_weights: output_to(&mut larger),
        ..call.tensors()
    };
    // SAFETY: a live plan, and tensors of the sizes that they say.
    must(|text| unsafe { msdeform_cpu_backward(plan.raw, &raw const tensors, text) });
    let found = larger.to_f64();
    let (gradient, behind) = found.split_at(len);
    call.assert_right(Role::GradWeights, gradient);
    assert!(behind.iter().all(|number| number.is_nan()) && behind.len() == 16);
    assert!(call.results[Role::GradValue].to_f64().iter().all(|number| number.is_nan()));
}

#[test]
fn references_that_are_the_same_for_all_need_not_be_copied() {
    let rule = offsets(|rule| rule.reference_of = msdeform_reference_of::Query as i32);
    let plan = plan(&problem(&description(|given| given.offsets = &raw const rule)), None);
    let as_rust = Offsets::from_points().one_for_all_levels();
    let mut call = Call::new(like_description().offsets(as_rust).build().unwrap());
    call.inputs.set(Role::References, &[0.25, 0.75].repeat(8));
    let one = Buffer::from(vec![0.25f32, 0.75]);
    let strides = [0i64; 3];
    let mut tensors = call.tensors();
    tensors.reference_points = input_of(&one);
    tensors.reference_points.strides = strides.as_ptr();
    tensors.reference_points.stride_count = 3;
    // SAFETY: a live plan, and tensors of the sizes that they say.
    must(|text| unsafe { msdeform_cpu_forward(plan.raw, &raw const tensors, text) });
    call.assert_right(Role::Output, &call.results[Role::Output].to_f64());
}

#[test]
fn problems_without_anything_to_compute_are_no_errors() {
    for change in [
        (|given| given.batch = 0) as fn(&mut msdeform_problem_description),
        |given| given.queries = 0,
        |given| given.level_count = 0,
    ] {
        let handle = problem(&description(change));
        let plan = plan(&handle, None);
        let buffer = |role| Buffer::poisoned(DType::F32, tensor_info(&handle, role).elements);
        let (value, mut output) = (buffer(msdeform_role::Value), buffer(msdeform_role::Output));
        let tensors =
            msdeform_tensors { value: input_of(&value), output: output_to(&mut output), ..sized() };
        // SAFETY: a live plan, and tensors of the sizes that they say.
        must(|text| unsafe { msdeform_cpu_forward(plan.raw, &raw const tensors, text) });
        assert!(output.to_f64().iter().all(|number| *number == 0.0));
    }
}
