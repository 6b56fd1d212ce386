//! What C programs do before a call, in Rust.

use std::ffi::{c_char, c_void};

use half::{bf16, f16};
use msdeform::{DType, Element, Problem, Role};
use msdeform_c::cpu::msdeform_cpu_plan_destroy;
use msdeform_c::cpu::{msdeform_cpu_options, msdeform_cpu_plan, msdeform_cpu_plan_create};
use msdeform_c::problem::*;
use msdeform_c::status::{msdeform_message, msdeform_status};
use msdeform_c::tensors::{msdeform_input, msdeform_output, msdeform_tensors};

/// What a test makes wrong.
pub type Change<T> = fn(&mut T);

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
    let mut description = std::mem::MaybeUninit::uninit();
    // SAFETY: memory of that size.
    let status = unsafe {
        msdeform_problem_description_init(
            description.as_mut_ptr(),
            size_of::<msdeform_problem_description>(),
        )
    };
    assert_eq!(status, msdeform_status::Ok);
    // SAFETY: it was filled.
    let mut description = unsafe { description.assume_init() };
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
    let mut offsets = std::mem::MaybeUninit::uninit();
    // SAFETY: memory of that size.
    let status =
        unsafe { msdeform_offsets_init(offsets.as_mut_ptr(), size_of::<msdeform_offsets>()) };
    assert_eq!(status, msdeform_status::Ok);
    // SAFETY: it was filled.
    let mut offsets = unsafe { offsets.assume_init() };
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

pub fn no_tensors() -> msdeform_tensors {
    // SAFETY: the header says that all zero is how one begins.
    let mut tensors: msdeform_tensors = unsafe { std::mem::zeroed() };
    tensors.struct_size = size_of::<msdeform_tensors>();
    tensors
}

pub fn input_of(bytes: &[u8]) -> msdeform_input {
    msdeform_input {
        data: bytes.as_ptr().cast(),
        bytes: bytes.len(),
        strides: std::ptr::null(),
        stride_count: 0,
    }
}

pub fn output_to(words: &mut Words) -> msdeform_output {
    msdeform_output { data: words.0.as_mut_ptr().cast::<c_void>(), bytes: words.1 }
}

/// Bytes, aligned for every format, and how many of them count.
pub struct Words(pub Vec<u64>, pub usize);

impl Words {
    /// Numbers in some format.
    pub fn of(dtype: DType, numbers: &[f64]) -> Self {
        let mut words = Self(vec![0; numbers.len()], numbers.len() * dtype.size_bytes());
        let to = words.0.as_mut_ptr();
        for (at, &number) in numbers.iter().enumerate() {
            // SAFETY: within the words, which have room for the widest format.
            unsafe {
                match dtype {
                    DType::F32 => to.cast::<f32>().add(at).write(number as f32),
                    DType::F16 => to.cast::<f16>().add(at).write(f16::from_f64(number)),
                    DType::Bf16 => to.cast::<bf16>().add(at).write(bf16::from_f64(number)),
                    DType::F64 => to.cast::<f64>().add(at).write(number),
                }
            }
        }
        words
    }

    /// NaN in every format.
    pub fn poisoned(bytes: usize) -> Self {
        Self(vec![u64::MAX; bytes.div_ceil(8)], bytes)
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: words are bytes, and there are as many.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }

    pub fn numbers(&self, dtype: DType) -> Vec<f64> {
        fn all<T: Element>(words: &Words) -> Vec<f64> {
            let count = words.1 / size_of::<T>();
            // SAFETY: aligned, within the words, and every bit pattern is a number.
            let found = unsafe { std::slice::from_raw_parts(words.0.as_ptr().cast::<T>(), count) };
            found.iter().map(|number| number.to_f64()).collect()
        }
        match dtype {
            DType::F32 => all::<f32>(self),
            DType::F16 => all::<f16>(self),
            DType::Bf16 => all::<bf16>(self),
            DType::F64 => all::<f64>(self),
        }
    }
}

/// Numbers for a tensor of a problem, as its format stores them: the same for the same seed.
pub fn stored(problem: &Problem, role: Role, from: f64, to: f64) -> Words {
    let mut state = 7 + role.index() as u32;
    let numbers: Vec<f64> = (0..problem.len_of(role))
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            from + (to - from) * f64::from(state >> 8) / f64::from(1 << 24)
        })
        .collect();
    Words::of(problem.format_of(role), &numbers)
}
