//! What the functions compute is what the library's reference does, in every format and on every way that C can say.

use msdeform::{DType, Direction, Offsets, Problem, Role, ValueLayout, reference};
use msdeform_c::cpu::*;
use msdeform_c::problem::*;
use msdeform_c::status::msdeform_status;
use msdeform_c::tensors::msdeform_tensors;

use crate::given::*;

/// Relative L2 error within the contract; NaN is outside of every bound.
fn assert_close(what: &str, dtype: DType, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let off: f64 = found.iter().zip(expected).map(|(x, y)| (x - y).powi(2)).sum();
    let size: f64 = expected.iter().map(|y| y * y).sum();
    assert!(off.sqrt() <= dtype.rel_l2_bound() * size.sqrt(), "{what} in {dtype}: {off} of {size}");
}

/// The inputs of a call, and where its results go.
struct Call {
    problem: Problem,
    read: Vec<(Role, Words)>,
    written: Vec<(Role, Words)>,
}

impl Call {
    fn new(problem: Problem) -> Self {
        let operator = problem.operator();
        let range = |role| match role {
            Role::Locations => (-0.2, 1.2),
            Role::References => (0.1, 0.9),
            Role::Weights => (0.0, 1.0),
            _ => (-1.0, 1.0),
        };
        let inputs = operator.inputs.iter().copied().chain([Role::GradOutput]);
        let read = inputs.map(|role| {
            let (from, to) = range(role);
            (role, stored(&problem, role, from, to))
        });
        let read = read.collect();
        let gradients = operator.inputs.iter().filter_map(|role| role.gradient());
        let written = [Role::Output].into_iter().chain(gradients);
        let written = written.map(|role| (role, Words::poisoned(problem.bytes_of(role)))).collect();
        Self { problem, read, written }
    }

    fn tensors(&mut self) -> msdeform_tensors {
        let mut tensors = no_tensors();
        for (role, words) in &self.read {
            let input = input_of(words.bytes());
            match role {
                Role::Value => tensors.value = input,
                Role::Locations => tensors.sampling_locations = input,
                Role::Weights => tensors.attention_weights = input,
                Role::References => tensors.reference_points = input,
                Role::Offsets => tensors.sampling_offsets = input,
                Role::Logits => tensors.attention_logits = input,
                _ => tensors.grad_output = input,
            }
        }
        for (role, words) in &mut self.written {
            let output = output_to(words);
            match role {
                Role::Output => tensors.output = output,
                Role::GradValue => tensors.grad_value = output,
                Role::GradLocations => tensors.grad_sampling_locations = output,
                Role::GradWeights => tensors.grad_attention_weights = output,
                Role::GradReferences => tensors.grad_reference_points = output,
                Role::GradOffsets => tensors.grad_sampling_offsets = output,
                _ => tensors.grad_attention_logits = output,
            }
        }
        tensors
    }

    fn input(&self, role: Role) -> Vec<f64> {
        let (_, words) = self.read.iter().find(|(found, _)| *found == role).expect("an input");
        words.numbers(self.problem.format_of(role))
    }

    fn expected(&self, role: Role) -> Vec<f64> {
        let direction = if role == Role::Output { Direction::Forward } else { Direction::Backward };
        let inputs = Role::ALL.map(|role| {
            if self.read.iter().any(|(found, _)| *found == role) {
                self.input(role)
            } else {
                vec![]
            }
        });
        let found = reference::compute(&self.problem, direction, |role| &inputs[role.index()]);
        found.into_iter().find(|(of, _)| *of == role).expect("a result of the call").1
    }

    /// Both directions, with one struct.
    fn run(&mut self, plan: &Handle<msdeform_cpu_plan>) {
        let tensors = self.tensors();
        // SAFETY: a live plan, and tensors of the sizes that they say.
        must(|text| unsafe { msdeform_cpu_forward(plan.raw, &raw const tensors, text) });
        // SAFETY: as above.
        must(|text| unsafe { msdeform_cpu_backward(plan.raw, &raw const tensors, text) });
        for (role, words) in &self.written {
            let dtype = self.problem.format_of(*role);
            let what = format!("{role} of {}", self.problem);
            assert_close(&what, dtype, &words.numbers(dtype), &self.expected(*role));
        }
    }
}

fn like(description: &msdeform_problem_description) -> msdeform::ProblemBuilder {
    Problem::builder()
        .batch(description.batch as usize)
        .heads(2)
        .channels(3)
        .queries(4)
        .levels([(6, 8), (3, 4)])
        .points(2)
}

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
            let given = description(|given| {
                given.dtype = code as i32;
                given.layout = layout_code as i32;
            });
            let handle = problem(&given);
            let plan = plan(&handle, None);
            Call::new(like(&given).dtype(dtype).layout(layout).build().unwrap()).run(&plan);
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

    // SAFETY: zero is how the struct begins.
    let mut info: msdeform_tensor_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<msdeform_tensor_info>();
    for (role, of) in [
        (msdeform_role::Value, Role::Value),
        (msdeform_role::ReferencePoints, Role::References),
        (msdeform_role::GradAttentionLogits, Role::GradLogits),
        (msdeform_role::Output, Role::Output),
    ] {
        // SAFETY: a live handle and a struct of its size.
        must(|text| unsafe {
            msdeform_problem_tensor(handle.raw, role as i32, &raw mut info, text)
        });
        assert_eq!((info.bytes, info.elements), (expected.bytes_of(of), expected.len_of(of)));
        assert_eq!(info.shape.iter().product::<i64>() as usize, expected.len_of(of));
    }
    assert_eq!((info.rank, info.shape), (3, [2, 4, 6, 1, 1]));
    assert_eq!(info.dtype, msdeform_dtype::F32 as i32);
}

#[test]
fn from_offsets_both_directions_are_computed_as_the_reference_does() {
    for kind in [msdeform_reference_kind::Point, msdeform_reference_kind::Box] {
        let rule = offsets(|rule| {
            rule.kind = kind as i32;
            rule.reference_of = msdeform_reference_of::Query as i32;
        });
        let given = description(|given| given.offsets = &raw const rule);
        let as_rust = match kind {
            msdeform_reference_kind::Point => Offsets::from_points(),
            msdeform_reference_kind::Box => Offsets::from_boxes(),
        };
        let handle = problem(&given);
        let plan = plan(&handle, None);
        let as_rust = like(&given).offsets(as_rust.one_for_all_levels()).build().unwrap();
        Call::new(as_rust).run(&plan);
    }
}

#[test]
fn threads_instructions_and_shared_workers_change_no_result() {
    let given = description(|_| {});
    let handle = problem(&given);
    // SAFETY: a place for the handle.
    let workers = Handle::new(msdeform_workers_destroy, |to, text| unsafe {
        msdeform_workers_create(2, to, text)
    });
    // SAFETY: zero is how the struct begins.
    let none: msdeform_cpu_options = unsafe { std::mem::zeroed() };
    let none = msdeform_cpu_options { struct_size: size_of::<msdeform_cpu_options>(), ..none };
    let scalar = msdeform_isa::Scalar as i32;
    for (options, threads) in [
        (msdeform_cpu_options { threads: 1, isa: scalar, ..none }, 1),
        (msdeform_cpu_options { threads: 3, ..none }, 3),
        (msdeform_cpu_options { workers: workers.raw, isa: scalar, ..none }, 2),
    ] {
        let plan = plan(&handle, Some(&options));
        let mut call = Call::new(like(&given).build().unwrap());
        call.run(&plan);
        // SAFETY: zero is how the struct begins.
        let mut info: msdeform_cpu_plan_info = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<msdeform_cpu_plan_info>();
        // SAFETY: a live handle and a struct of its size.
        must(|text| unsafe { msdeform_cpu_plan_get_info(plan.raw, &raw mut info, text) });
        assert_eq!(info.threads, threads);
        assert!(options.isa == 0 || info.isa == options.isa);
        assert!(info.workspace_bytes > 0);
    }
}

#[test]
fn workers_and_problems_may_end_before_their_plans() {
    let given = description(|_| {});
    let handle = problem(&given);
    // SAFETY: a place for the handle.
    let workers = Handle::new(msdeform_workers_destroy, |to, text| unsafe {
        msdeform_workers_create(2, to, text)
    });
    let options = msdeform_cpu_options {
        struct_size: size_of::<msdeform_cpu_options>(),
        workers: workers.raw,
        threads: 0,
        isa: 0,
        reserved: 0,
    };
    let plan = plan(&handle, Some(&options));
    drop((handle, workers));
    Call::new(like(&given).build().unwrap()).run(&plan);
}

#[test]
fn only_gradients_with_a_place_are_computed_and_larger_places_are_left_alone_behind() {
    let given = description(|_| {});
    let handle = problem(&given);
    let plan = plan(&handle, None);
    let mut call = Call::new(like(&given).build().unwrap());
    let mut larger = Words::poisoned(call.problem.bytes_of(Role::GradWeights) + 64);
    let mut tensors = call.tensors();
    tensors.grad_value =
        msdeform_c::tensors::msdeform_output { data: std::ptr::null_mut(), bytes: 0 };
    tensors.grad_sampling_locations = tensors.grad_value;
    tensors.grad_attention_weights = output_to(&mut larger);
    // SAFETY: a live plan, and tensors of the sizes that they say.
    must(|text| unsafe { msdeform_cpu_backward(plan.raw, &raw const tensors, text) });
    let found = larger.numbers(DType::F32);
    let (gradient, behind) = found.split_at(call.problem.weights_len());
    assert_close("weights", DType::F32, gradient, &call.expected(Role::GradWeights));
    assert!(behind.iter().all(|number| number.is_nan()) && behind.len() == 16);
    let value = call.written.iter().find(|(role, _)| *role == Role::GradValue).unwrap();
    assert!(value.1.numbers(DType::F32).iter().all(|number| number.is_nan()));
}

#[test]
fn references_that_are_the_same_for_all_need_not_be_copied() {
    let rule = offsets(|rule| rule.reference_of = msdeform_reference_of::Query as i32);
    let given = description(|given| given.offsets = &raw const rule);
    let handle = problem(&given);
    let plan = plan(&handle, None);
    let as_rust = Offsets::from_points().one_for_all_levels();
    let mut call = Call::new(like(&given).offsets(as_rust).build().unwrap());
    let all_same = [0.25, 0.75].repeat(8);
    let one = Words::of(DType::F32, &[0.25, 0.75]);
    let at = call.read.iter().position(|(role, _)| *role == Role::References).unwrap();
    call.read[at].1 = Words::of(DType::F32, &all_same);
    let strides = [0i64; 3];
    let mut tensors = call.tensors();
    tensors.reference_points = input_of(one.bytes());
    tensors.reference_points.strides = strides.as_ptr();
    tensors.reference_points.stride_count = 3;
    // SAFETY: a live plan, and tensors of the sizes that they say.
    must(|text| unsafe { msdeform_cpu_forward(plan.raw, &raw const tensors, text) });
    let output = call.written[0].1.numbers(DType::F32);
    assert_close("output", DType::F32, &output, &call.expected(Role::Output));
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
        // SAFETY: zero is how the struct begins.
        let mut info: msdeform_tensor_info = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<msdeform_tensor_info>();
        let mut bytes = |role: msdeform_role| {
            // SAFETY: a live handle and a struct of its size.
            must(|text| unsafe {
                msdeform_problem_tensor(handle.raw, role as i32, &raw mut info, text)
            });
            info.bytes
        };
        let value = Words::poisoned(bytes(msdeform_role::Value));
        let mut output = Words::poisoned(bytes(msdeform_role::Output));
        let mut tensors = no_tensors();
        tensors.value = input_of(value.bytes());
        tensors.output = output_to(&mut output);
        // SAFETY: a live plan, and tensors of the sizes that they say.
        must(|text| unsafe { msdeform_cpu_forward(plan.raw, &raw const tensors, text) });
        assert!(output.numbers(DType::F32).iter().all(|number| *number == 0.0));
    }
}
