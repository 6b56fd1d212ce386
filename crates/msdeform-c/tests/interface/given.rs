//! What C programs do before a call, in Rust.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use msdeform::{Direction, Gradients, Problem, Role};
use msdeform_c::cpu::*;
use msdeform_c::problem::*;
use msdeform_c::status::{msdeform_message, msdeform_status};
use msdeform_c::tensors::{msdeform_input, msdeform_output, msdeform_tensors};
use msdeform_lab::case::{Case, Numbers, Samples};
use msdeform_lab::{Buffer, HostTensors, oracle};

/// What a test makes wrong, how that is refused, and a part of the text.
pub type Refusal<T> = (fn(&mut T), msdeform_status, &'static str);

pub fn assert_refused<T>(
    cases: &[Refusal<T>],
    call: impl Fn(fn(&mut T)) -> (msdeform_status, String),
) {
    for (index, (change, status, part)) in cases.iter().enumerate() {
        let (found, text) = call(*change);
        assert_eq!(found, *status, "case {index}: {text}");
        assert!(text.contains(part), "case {index}: {text}");
    }
}

/// A struct as programs begin it: all zero, and its size in the first field.
pub fn sized<T>() -> T {
    let mut begun = MaybeUninit::<T>::zeroed();
    // SAFETY: the structs of the interface may be all zero, and begin with a `size_t`.
    unsafe {
        begun.as_mut_ptr().cast::<usize>().write(size_of::<T>());
        begun.assume_init()
    }
}

/// A struct that a function of the interface fills.
fn initial<T>(init: unsafe extern "C" fn(*mut T, usize) -> msdeform_status) -> T {
    let mut filled = MaybeUninit::uninit();
    // SAFETY: memory of that size.
    let status = unsafe { init(filled.as_mut_ptr(), size_of::<T>()) };
    assert_eq!(status, msdeform_status::Ok);
    // SAFETY: it was filled.
    unsafe { filled.assume_init() }
}

/// A place for texts.
pub struct Message {
    text: Vec<c_char>,
    pub raw: msdeform_message,
}

impl Message {
    pub fn new(capacity: usize) -> Self {
        let mut text = vec![0x55; capacity];
        let raw = msdeform_message { text: text.as_mut_ptr(), capacity, length: usize::MAX };
        Self { text, raw }
    }

    /// Up to the zero that ends it.
    pub fn text(&self) -> String {
        let end = self.text.iter().position(|&byte| byte == 0).expect("a zero at the end");
        let bytes = self.text[..end].iter().map(|&byte| byte.cast_unsigned()).collect();
        String::from_utf8(bytes).expect("UTF-8")
    }
}

/// Calls something with a place for its text; both answers.
pub fn told(
    call: impl FnOnce(*mut msdeform_message) -> msdeform_status,
) -> (msdeform_status, String) {
    let mut message = Message::new(1024);
    let status = call(&raw mut message.raw);
    (status, message.text())
}

pub fn must(call: impl FnOnce(*mut msdeform_message) -> msdeform_status) {
    let (status, text) = told(call);
    assert_eq!((status, text.as_str()), (msdeform_status::Ok, ""));
}

pub fn described(
    change: impl FnOnce(&mut msdeform_problem_description),
) -> (msdeform_status, String) {
    let description = description(change);
    let mut problem = std::ptr::dangling_mut();
    // SAFETY: the description's pointers are what the test says; the handle is destroyed below.
    let answer = told(|text| unsafe {
        msdeform_problem_create(&raw const description, &raw mut problem, text)
    });
    assert_eq!(problem.is_null(), answer.0 != msdeform_status::Ok, "null unless it was made");
    // SAFETY: null, or made just now.
    unsafe { msdeform_problem_destroy(problem) };
    answer
}

/// Two images, two heads of three channels, four queries, levels of 6 x 8 and 3 x 4 with two points each; then changed.
pub fn description(
    change: impl FnOnce(&mut msdeform_problem_description),
) -> msdeform_problem_description {
    static LEVELS: [i64; 4] = [6, 8, 3, 4];
    let mut description = initial(msdeform_problem_description_init);
    description.batch = 2;
    description.heads = 2;
    description.channels = 3;
    description.queries = 4;
    description.points = 2;
    description.level_count = 2;
    description.level_sizes = LEVELS.as_ptr();
    change(&mut description);
    description
}

pub fn offsets(change: impl FnOnce(&mut msdeform_offsets)) -> msdeform_offsets {
    let mut offsets = initial(msdeform_offsets_init);
    change(&mut offsets);
    offsets
}

/// A handle that ends with its scope.
pub struct Handle<T> {
    pub raw: *mut T,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Handle<T> {
    pub fn new(
        destroy: unsafe extern "C" fn(*mut T),
        create: impl FnOnce(*mut *mut T, *mut msdeform_message) -> msdeform_status,
    ) -> Self {
        let mut raw = std::ptr::null_mut();
        must(|text| create(&raw mut raw, text));
        Self { raw, destroy }
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: `new` pairs the handle with its function, and drop is the last use of the handle.
        unsafe { (self.destroy)(self.raw) };
    }
}

pub fn problem(description: &msdeform_problem_description) -> Handle<msdeform_problem> {
    // SAFETY: a description whose lists are alive.
    Handle::new(msdeform_problem_destroy, |to, text| unsafe {
        msdeform_problem_create(description, to, text)
    })
}

pub fn plan(
    problem: &Handle<msdeform_problem>,
    options: Option<&msdeform_cpu_options>,
) -> Handle<msdeform_cpu_plan> {
    let options = options.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: live handles.
    Handle::new(msdeform_cpu_plan_destroy, |to, text| unsafe {
        msdeform_cpu_plan_create(problem.raw, options, to, text)
    })
}

pub fn workers(threads: i64) -> Handle<msdeform_workers> {
    // SAFETY: a place for the handle.
    Handle::new(msdeform_workers_destroy, |to, text| unsafe {
        msdeform_workers_create(threads, to, text)
    })
}

pub fn tensor_info(
    problem: &Handle<msdeform_problem>,
    role: msdeform_role,
) -> msdeform_tensor_info {
    let mut info = sized();
    // SAFETY: a live handle and a struct of its size.
    must(|text| unsafe { msdeform_problem_tensor(problem.raw, role as i32, &raw mut info, text) });
    info
}

pub const NO_INPUT: msdeform_input =
    msdeform_input { data: std::ptr::null(), bytes: 0, strides: std::ptr::null(), stride_count: 0 };
pub const NO_OUTPUT: msdeform_output = msdeform_output { data: std::ptr::null_mut(), bytes: 0 };

pub fn input_of(buffer: &Buffer) -> msdeform_input {
    let bytes = buffer.bytes();
    msdeform_input { data: bytes.as_ptr().cast(), bytes: bytes.len(), ..NO_INPUT }
}

pub fn output_to(buffer: &mut Buffer) -> msdeform_output {
    let bytes = buffer.bytes_mut();
    msdeform_output { data: bytes.as_mut_ptr().cast(), bytes: bytes.len() }
}

/// The problem of [`description`], as Rust describes it.
pub fn like_description() -> msdeform::ProblemBuilder {
    let levels = [(6, 8), (3, 4)];
    Problem::builder().batch(2).heads(2).channels(3).queries(4).levels(levels).points(2)
}

/// The inputs of a call in both directions, and where its results go.
pub struct Call {
    pub case: Case,
    pub inputs: HostTensors,
    pub results: HostTensors,
}

impl Call {
    pub fn new(problem: Problem) -> Self {
        let numbers = Numbers { samples: Samples::Around, ..Numbers::default() };
        let gradients = Gradients::all_of(&problem);
        let case = Case { numbers, ..Case::plain(problem, Some(gradients)) };
        let results = [Direction::Forward, Direction::Backward]
            .into_iter()
            .flat_map(|direction| HostTensors::poisoned(&case.problem, direction, gradients));
        Self { inputs: case.inputs(), results: results.collect(), case }
    }

    /// Of the usual problem.
    pub fn usual() -> Self {
        Self::new(like_description().build().unwrap())
    }

    pub fn tensors(&mut self) -> msdeform_tensors {
        let mut tensors: msdeform_tensors = sized();
        for (role, buffer) in self.inputs.iter() {
            let field = match role {
                Role::Value => &mut tensors.value,
                Role::Locations => &mut tensors.sampling_locations,
                Role::Weights => &mut tensors.attention_weights,
                Role::References => &mut tensors.reference_points,
                Role::Offsets => &mut tensors.sampling_offsets,
                Role::Logits => &mut tensors.attention_logits,
                _ => &mut tensors.grad_output,
            };
            *field = input_of(buffer);
        }
        for (role, buffer) in self.results.iter_mut() {
            let field = match role {
                Role::Output => &mut tensors.output,
                Role::GradValue => &mut tensors.grad_value,
                Role::GradLocations => &mut tensors.grad_sampling_locations,
                Role::GradWeights => &mut tensors.grad_attention_weights,
                Role::GradReferences => &mut tensors.grad_reference_points,
                Role::GradOffsets => &mut tensors.grad_sampling_offsets,
                _ => &mut tensors.grad_attention_logits,
            };
            *field = output_to(buffer);
        }
        tensors
    }

    /// Asserts that numbers are those of the reference.
    pub fn assert_right(&self, role: Role, found: &[f64]) {
        let wants = self.case.wants.filter(|_| role != Role::Output);
        let case = Case { wants, ..self.case.clone() };
        let expected = oracle::expect(&case, &self.inputs);
        let expected = expected.iter().find(|expected| expected.tensor == role).unwrap();
        let verdict = expected.compare_numbers(found, expected.dtype.rel_l2_bound());
        assert_eq!(verdict.fault, None, "{role} of {}", case.problem);
    }

    /// Both directions, with one struct.
    pub fn run(&mut self, plan: &Handle<msdeform_cpu_plan>) {
        let tensors = self.tensors();
        // SAFETY: a live plan, and tensors of the sizes that they say.
        must(|text| unsafe { msdeform_cpu_forward(plan.raw, &raw const tensors, text) });
        // SAFETY: as above.
        must(|text| unsafe { msdeform_cpu_backward(plan.raw, &raw const tensors, text) });
        for (role, buffer) in self.results.iter() {
            self.assert_right(role, &buffer.to_f64());
        }
    }
}
