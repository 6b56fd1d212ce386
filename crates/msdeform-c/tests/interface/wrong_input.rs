//! What is wrong becomes a code and a text, before anything is computed.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use msdeform::{Offsets, Role};
use msdeform_c::cpu::*;
use msdeform_c::problem::*;
use msdeform_c::status::*;
use msdeform_c::tensors::{msdeform_output, msdeform_tensors};

use crate::given::*;

/// Each change of a description is refused with this code, and the text names what is wrong.
#[test]
fn descriptions_that_make_no_sense_are_refused() {
    use msdeform_status as Status;
    static STARTS: [i64; 2] = [0, 1];
    static POINTS: [i64; 2] = [1, -1];
    static SIZES: [i64; 4] = [0, 8, 3, 4];
    let cases: [Refusal<msdeform_problem_description>; 23] = [
        (|d| d.queries = -1, Status::BadProblem, "`queries`"),
        (|d| d.level_count = -1, Status::BadProblem, "`level_count`"),
        (|d| d.level_count = -2, Status::BadProblem, "level_count"),
        (|d| d.level_count = i64::MAX, Status::BadProblem, "level_sizes"),
        (|d| d.level_sizes = std::ptr::null(), Status::NullPointer, "level_sizes"),
        (|d| d.level_sizes = d.level_sizes.wrapping_byte_add(4), Status::Misaligned, "level_sizes"),
        (|d| d.batch = -3, Status::BadProblem, "batch"),
        (|d| d.heads = -3, Status::BadProblem, "heads"),
        (|d| d.channels = i64::MAX, Status::BadProblem, "address"),
        (|d| d.points = -1, Status::BadProblem, "points"),
        (|d| d.spatial = 5, Status::BadProblem, "pixel"),
        (|d| d.spatial = -5, Status::BadProblem, "spatial"),
        (|d| d.level_starts = STARTS.as_ptr(), Status::BadProblem, "overlap"),
        (|d| d.points_per_level = POINTS.as_ptr(), Status::BadProblem, "points_per_level"),
        (|d| d.level_sizes = SIZES.as_ptr(), Status::BadProblem, "level 0"),
        (|d| d.dtype = 5, Status::UnknownConstant, "`dtype` is 5"),
        (|d| d.sampling_dtype = -1, Status::UnknownConstant, "`sampling_dtype` is -1"),
        (|d| d.reference_dtype = i32::MAX, Status::UnknownConstant, "`reference_dtype`"),
        (|d| d.output_dtype = i32::MAX, Status::UnknownConstant, "`output_dtype`"),
        (|d| d.reserved = 1, Status::UnknownConstant, "`reserved`"),
        (|d| d.layout = 3, Status::UnknownConstant, "`layout` is 3"),
        (|d| d.struct_size = 8, Status::StructSize, "sizeof(msdeform_problem_description)"),
        (|d| d.struct_size = usize::MAX, Status::StructSize, "sizeof"),
    ];
    assert_eq!(described(|_| {}), (Status::Ok, String::new()));
    assert_refused(&cases, |change| described(change));
}

#[test]
fn rules_that_cannot_be_followed_are_refused() {
    use msdeform_status as Status;
    let cases: [Refusal<msdeform_offsets>; 10] = [
        (|o| o.kind = 2, Status::UnknownConstant, "`kind` is 2"),
        (|o| o.reference_of = -1, Status::UnknownConstant, "`reference_of` is -1"),
        (|o| o.reference_of = 2, Status::BadOffsets, "anchors"),
        (
            |o| {
                o.reference_of = 2;
                o.anchors = -1;
            },
            Status::BadProblem,
            "anchors",
        ),
        (|o| o.offset_scale = f32::NAN, Status::BadOffsets, "offset_scale"),
        (|o| o.offset_scale = f32::INFINITY, Status::BadOffsets, "offset_scale"),
        (|o| o.raw_weights = 2, Status::UnknownConstant, "`raw_weights` is 2"),
        (|o| o.nearest = -1, Status::UnknownConstant, "`nearest` is -1"),
        (|o| o.reserved = 1, Status::UnknownConstant, "`reserved` is 1"),
        (|o| o.struct_size = 0, Status::StructSize, "sizeof(msdeform_offsets)"),
    ];
    assert_refused(&cases, |change| {
        let rule = offsets(change);
        described(|given| given.offsets = &raw const rule)
    });
}

#[test]
fn tensors_that_do_not_fit_are_refused_and_nothing_is_written() {
    use msdeform_status as Status;
    static STRIDES: [i64; 3] = [1, 1, 1];
    let cases: [Refusal<msdeform_tensors>; 17] = [
        (|t| t.value.data = std::ptr::null(), Status::NullPointer, "`value` is null"),
        (|t| t.sampling_locations.data = std::ptr::null(), Status::NullPointer, "locations"),
        (|t| t.output.data = std::ptr::null_mut(), Status::NullPointer, "`output` is null"),
        (|t| t.value.data = t.value.data.wrapping_byte_add(1), Status::Misaligned, "`value`"),
        (|t| t.output.data = t.output.data.wrapping_byte_add(2), Status::Misaligned, "`output`"),
        (|t| t.value.bytes -= 4, Status::BadLength, "`value` has 2876 bytes, expected 2880"),
        (|t| t.value.bytes += 4, Status::BadLength, "`value` has 2884 bytes"),
        (|t| t.value.bytes = usize::MAX, Status::BadLength, "`value`"),
        (|t| t.attention_weights.bytes = 0, Status::BadLength, "`attention_weights`"),
        (|t| t.output.bytes -= 1, Status::BadLength, "or more"),
        (
            |t| {
                t.value.strides = STRIDES.as_ptr();
                t.value.stride_count = 3;
            },
            Status::BadStrides,
            "`value`",
        ),
        (|t| t.value.stride_count = 3, Status::BadStrides, "`value`"),
        (|t| t.output.data = t.value.data.cast_mut(), Status::Overlap, "lies over `value`"),
        (
            |t| t.output.data = t.value.data.wrapping_byte_add(2876).cast_mut(),
            Status::Overlap,
            "`output`, which is written",
        ),
        (|t| t.reference_points = t.value, Status::WrongTensor, "`reference_points` is given"),
        (|t| t.grad_attention_logits = t.output, Status::WrongTensor, "grad_attention_logits"),
        (|t| t.struct_size -= 8, Status::StructSize, "sizeof(msdeform_tensors)"),
    ];
    let plan = plan(&problem(&description(|_| {})), None);
    assert_refused(&cases, |change| {
        let mut call = Call::usual();
        let mut tensors = call.tensors();
        change(&mut tensors);
        // SAFETY: a live plan; what is wrong is refused before it is touched.
        let answer =
            told(|text| unsafe { msdeform_cpu_forward(plan.raw, &raw const tensors, text) });
        assert!(call.results[Role::Output].bytes().iter().all(|&byte| byte == u8::MAX));
        answer
    });
}

#[test]
fn strides_that_reach_outside_are_refused() {
    let rule = offsets(|rule| rule.reference_of = msdeform_reference_of::Query as i32);
    let plan = plan(&problem(&description(|given| given.offsets = &raw const rule)), None);
    let as_rust = Offsets::from_points().one_for_all_levels();
    let mut call = Call::new(like_description().offsets(as_rust).build().unwrap());
    let mut raw = call.tensors();
    for (strides, count, part) in [
        ([64i64, 17, 0], 2, "reaches outside"),
        ([64, -16, 0], 2, "-16"),
        ([64, 16, 2], 3, "`stride_count` is 3, expected 2"),
        ([i64::MAX, i64::MAX, 0], 2, "reaches outside"),
    ] {
        raw.sampling_offsets.strides = strides.as_ptr();
        raw.sampling_offsets.stride_count = count;
        // SAFETY: as above.
        let (status, text) =
            told(|text| unsafe { msdeform_cpu_forward(plan.raw, &raw const raw, text) });
        assert_eq!(status, msdeform_status::BadStrides, "{text}");
        assert!(text.contains(part), "{text}");
    }
    raw.sampling_offsets.strides = std::ptr::null();
    raw.sampling_offsets.stride_count = 2;
    // SAFETY: as above.
    let (status, _) = told(|text| unsafe { msdeform_cpu_forward(plan.raw, &raw const raw, text) });
    assert_eq!(status, msdeform_status::NullPointer);
}

#[test]
fn null_and_misaligned_pointers_are_refused_by_every_function() {
    let description = description(|_| {});
    let handle = problem(&description);
    let plan = plan(&handle, None);
    let mut call = Call::usual();
    let raw = call.tensors();
    let (mut out_problem, mut out_plan) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (null, none) = (std::ptr::null_mut(), std::ptr::null());
    let odd = std::ptr::without_provenance_mut::<u8>(0x1001);
    // SAFETY: pointers are null, misaligned, or lead to what they should; the first two are refused.
    unsafe {
        let refusals = [
            msdeform_problem_create(std::ptr::null(), &raw mut out_problem, null),
            msdeform_problem_create(&raw const description, std::ptr::null_mut(), null),
            msdeform_problem_tensor(std::ptr::null(), 0, std::ptr::null_mut(), null),
            msdeform_problem_tensor(handle.raw, 0, std::ptr::null_mut(), null),
            msdeform_problem_text(std::ptr::null(), null),
            msdeform_problem_description_init(std::ptr::null_mut(), 112),
            msdeform_offsets_init(std::ptr::null_mut(), 40),
            msdeform_cpu_plan_create(std::ptr::null(), none, &raw mut out_plan, null),
            msdeform_cpu_plan_create(handle.raw, none, std::ptr::null_mut(), null),
            msdeform_cpu_plan_get_info(std::ptr::null(), std::ptr::null_mut(), null),
            msdeform_cpu_forward(std::ptr::null(), &raw const raw, null),
            msdeform_cpu_forward(plan.raw, std::ptr::null(), null),
            msdeform_cpu_backward(std::ptr::null(), &raw const raw, null),
            msdeform_cpu_backward(plan.raw, std::ptr::null(), null),
            msdeform_workers_create(1, std::ptr::null_mut(), null),
            msdeform_isa_available(0, std::ptr::null_mut(), null),
        ];
        assert_eq!(refusals, [msdeform_status::NullPointer; 16]);
        let refusals = [
            msdeform_problem_create(odd.cast(), &raw mut out_problem, null),
            msdeform_problem_create(&raw const description, odd.cast(), null),
            msdeform_problem_text(odd.cast(), null),
            msdeform_cpu_forward(odd.cast(), &raw const raw, null),
            msdeform_cpu_forward(plan.raw, odd.cast(), null),
            msdeform_cpu_forward(plan.raw, &raw const raw, odd.cast()),
        ];
        assert_eq!(refusals, [msdeform_status::Misaligned; 6]);
        msdeform_problem_destroy(std::ptr::null_mut());
        msdeform_cpu_plan_destroy(std::ptr::null_mut());
        msdeform_workers_destroy(std::ptr::null_mut());
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let handle = problem(&description(|_| {}));
    let workers = workers(1);
    let options = |threads, isa, reserved, workers| msdeform_cpu_options {
        struct_size: size_of::<msdeform_cpu_options>(),
        workers,
        threads,
        isa,
        reserved,
    };
    let none = std::ptr::null();
    let foreign =
        if cfg!(target_arch = "x86_64") { msdeform_isa::Neon } else { msdeform_isa::Avx2 };
    for (options, status) in [
        (options(-1, 0, 0, none), msdeform_status::Threads),
        (options(1 << 40, 0, 0, none), msdeform_status::Threads),
        (options(2, 0, 0, workers.raw.cast_const()), msdeform_status::Threads),
        (options(1, 9, 0, none), msdeform_status::UnknownConstant),
        (options(1, 0, 7, none), msdeform_status::UnknownConstant),
        (options(1, foreign as i32, 0, none), msdeform_status::Unsupported),
    ] {
        let mut plan = std::ptr::dangling_mut();
        // SAFETY: live handles, and a place for the new one.
        let (found, text) = told(|text| unsafe {
            msdeform_cpu_plan_create(handle.raw, &raw const options, &raw mut plan, text)
        });
        assert_eq!(found, status, "{text}");
        assert!(plan.is_null());
    }
    let mut refused = std::ptr::dangling_mut();
    // SAFETY: a place for the handle.
    let (status, _) =
        told(|text| unsafe { msdeform_workers_create(1 << 40, &raw mut refused, text) });
    assert_eq!((status, refused.is_null()), (msdeform_status::Threads, true));
    let mut available = 7;
    // SAFETY: a place for the answer.
    must(|text| unsafe { msdeform_isa_available(foreign as i32, &raw mut available, text) });
    assert_eq!(available, 0);
}

#[test]
fn threads_of_the_caller_that_make_no_sense_are_refused() {
    unsafe extern "C" fn run(
        _: *mut c_void,
        _: i64,
        _: unsafe extern "C" fn(*mut c_void),
        _: *mut c_void,
    ) {
    }
    let plan = plan(&problem(&description(|_| {})), None);
    let mut call = Call::usual();
    let tensors = call.tensors();
    let right = || msdeform_threads { count: 1, run: Some(run), ..sized() };
    let cases: [Refusal<msdeform_threads>; 4] = [
        (|it| it.run = None, msdeform_status::NullPointer, "`run` is null"),
        (|it| it.count = 0, msdeform_status::Threads, "`count` of `threads` is 0"),
        (|it| it.count = -1, msdeform_status::Threads, "`count` of `threads` is -1"),
        (|it| it.struct_size = 8, msdeform_status::StructSize, "sizeof(msdeform_threads)"),
    ];
    assert_refused(&cases, |change| {
        let mut threads = right();
        change(&mut threads);
        // SAFETY: a live plan, and tensors of the sizes that they say.
        told(|text| unsafe {
            msdeform_cpu_forward_on(plan.raw, &raw const threads, &raw const tensors, text)
        })
    });
}

#[test]
fn a_struct_of_a_newer_header_is_taken_as_long_as_nothing_new_is_set() {
    #[repr(C)]
    struct Newer {
        known: msdeform_problem_description,
        new: u64,
    }
    let bytes = size_of::<Newer>();
    let mut newer = Newer { known: description(|given| given.struct_size = bytes), new: 0 };
    let create = |newer: &Newer| {
        let mut problem = std::ptr::null_mut();
        // SAFETY: a struct of as many bytes as it says.
        let answer = told(|text| unsafe {
            msdeform_problem_create(std::ptr::from_ref(newer).cast(), &raw mut problem, text)
        });
        // SAFETY: null, or made just now.
        unsafe { msdeform_problem_destroy(problem) };
        answer
    };
    assert_eq!(create(&newer).0, msdeform_status::Ok);
    newer.new = 1;
    let (status, text) = create(&newer);
    assert_eq!(status, msdeform_status::StructSize);
    assert!(text.contains("newer libmsdeform"), "{text}");
}

#[test]
fn texts_that_do_not_fit_are_cut_and_their_whole_length_is_told() {
    let description = description(|given| given.dtype = 99);
    let create = |text: *mut msdeform_message| {
        let mut problem = std::ptr::null_mut();
        // SAFETY: a description whose lists are alive, and a place for the handle.
        unsafe { msdeform_problem_create(&raw const description, &raw mut problem, text) }
    };
    let mut whole = Message::new(200);
    create(&raw mut whole.raw);
    assert_eq!(whole.raw.length, whole.text().len());
    for capacity in 1..whole.raw.length + 2 {
        let mut cut = Message::new(capacity);
        assert_eq!(create(&raw mut cut.raw), msdeform_status::UnknownConstant);
        assert_eq!(cut.raw.length, whole.raw.length);
        assert_eq!(cut.text(), whole.text()[..(capacity - 1).min(whole.raw.length)]);
    }
    let mut none = msdeform_message { text: std::ptr::null_mut(), capacity: 0, length: 0 };
    assert_eq!(create(&raw mut none), msdeform_status::UnknownConstant);
    assert_eq!(none.length, whole.raw.length);
    none.capacity = 1;
    assert_eq!(create(&raw mut none), msdeform_status::NullPointer);
}

#[test]
fn a_panic_becomes_a_code() {
    let (status, text) = told(panics);
    assert_eq!(status, msdeform_status::Panicked);
    assert!(text.contains("on purpose") && text.contains("report"), "{text}");
}

#[test]
fn a_plan_that_two_threads_use_at_once_refuses_one_of_them() {
    struct Shared(*const msdeform_cpu_plan);
    // SAFETY: the header says that any thread may call.
    unsafe impl Sync for Shared {}
    let plan = plan(&problem(&description(|_| {})), None);
    let shared = Shared(plan.raw);
    let has_met = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let shared = &shared;
                let mut call = Call::usual();
                let raw = call.tensors();
                let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
                while !has_met.load(Ordering::Relaxed) && std::time::Instant::now() < until {
                    // SAFETY: a live plan, and tensors of this thread.
                    let status = unsafe {
                        msdeform_cpu_backward(shared.0, &raw const raw, std::ptr::null_mut())
                    };
                    match status {
                        msdeform_status::Busy => has_met.store(true, Ordering::Relaxed),
                        status => assert_eq!(status, msdeform_status::Ok),
                    }
                }
            });
        }
    });
    assert!(has_met.into_inner());
}

#[test]
fn outputs_must_not_lie_over_each_other() {
    let plan = plan(&problem(&description(|_| {})), None);
    let mut call = Call::usual();
    let mut raw = call.tensors();
    let msdeform_output { data, .. } = raw.grad_value;
    raw.grad_attention_weights = msdeform_output { data, bytes: 2 * 4 * 2 * 4 * 4 };
    // SAFETY: a live plan; refused before anything is touched.
    let (status, text) =
        told(|text| unsafe { msdeform_cpu_backward(plan.raw, &raw const raw, text) });
    assert_eq!(status, msdeform_status::Overlap, "{text}");
}

#[test]
fn every_code_has_its_name_and_others_have_none() {
    let name = |status: i32| {
        // SAFETY: the function says that it is a text that is never freed.
        unsafe { std::ffi::CStr::from_ptr(msdeform_status_name(status)) }.to_str().unwrap()
    };
    let names: std::collections::BTreeSet<_> =
        NAMES.iter().map(|(code, _)| name(*code as i32)).collect();
    assert_eq!(names.len(), NAMES.len());
    assert!(names.iter().all(|name| name.starts_with("MSDEFORM_STATUS_")));
    assert_eq!([name(-1), name(16), name(i32::MIN)], ["unknown"; 3]);
}
