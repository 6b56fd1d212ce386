//! The description of a call.

use msdeform::{DType, Direction, Offsets, Problem, Role, ValueLayout};

use crate::border::{answer, fill, growing, hand_out, handle, list, read, take_back};
use crate::status::{Failure, entry, msdeform_message, msdeform_status, silently, write_text};
use crate::tensors::ROLES;

/// How a tensor is stored. Arithmetic is 32-bit or better for every type.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_dtype {
    /// For values f32; for the output, locations, weights, offsets and logits that of the values; for references that of the offsets.
    Default = 0,
    /// IEEE 754 single precision, a C `float`.
    F32 = 1,
    /// IEEE 754 half precision.
    F16 = 2,
    /// The upper half of an f32.
    Bf16 = 3,
    /// IEEE 754 double precision, a C `double`. Computed by the plain reference, on one thread.
    F64 = 4,
}

/// Memory order of the value tensor and of its gradient.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_layout {
    /// [batch, spatial, heads, channels]: what the PyTorch ecosystem uses.
    Interleaved = 0,
    /// [batch, heads, spatial, channels].
    HeadMajor = 1,
    /// The same with a border of one pixel around every level: a level of H x W takes (H + 2) * (W + 2) pixels. The
    /// border must hold zeros; its gradient is zero.
    HeadMajorPadded = 2,
}

/// What an offset starts from.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_reference_kind {
    /// (x, y); offsets are pixels of their level.
    Point = 0,
    /// (x, y, width, height); offsets are parts of the box.
    Box = 1,
}

/// Which of a query's references a sample starts from.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_reference_of {
    /// That of its level.
    Level = 0,
    /// The only one.
    Query = 1,
    /// With Z anchors point p of a level starts from anchor p mod Z.
    Anchor = 2,
}

/// A tensor of a call.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_role {
    /// [batch, spatial, heads, channels], or head-major.
    Value = 0,
    /// [batch, queries, heads, samples, 2]: where samples are taken, (x, y) in [0, 1].
    SamplingLocations = 1,
    /// [batch, queries, heads, samples]: what each counts.
    AttentionWeights = 2,
    /// [batch, queries, references, 2 or 4]: what offsets start from.
    ReferencePoints = 3,
    /// [batch, queries, heads, samples, 2]: how far from there samples are taken.
    SamplingOffsets = 4,
    /// [batch, queries, heads, samples]: what each counts, before the softmax.
    AttentionLogits = 5,
    /// [batch, queries, heads * channels].
    Output = 6,
    /// The gradient of the output.
    GradOutput = 7,
    /// The gradient of the values.
    GradValue = 8,
    /// The gradient of the locations.
    GradSamplingLocations = 9,
    /// The gradient of the weights.
    GradAttentionWeights = 10,
    /// The gradient of the references.
    GradReferencePoints = 11,
    /// The gradient of the offsets.
    GradSamplingOffsets = 12,
    /// The gradient of the logits.
    GradAttentionLogits = 13,
}

/// How samples follow from offsets and logits, as a model's linear layers give them:
///
///   location[n, q, m, l, p] = centre(reference[n, q, r]) + offset[n, q, m, l, p] * s
///   weight[n, q, m, l, p]   = softmax over all (l, p) of logit[n, q, m, l, p]
///
/// with s = (1 / W, 1 / H) of the level for points, and (width, height) of the reference * offset_scale / P for boxes.
///
/// Start from `msdeform_offsets_init`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_offsets {
    /// sizeof(msdeform_offsets).
    pub struct_size: usize,
    /// For `MSDEFORM_REFERENCE_OF_ANCHOR`: how many there are.
    pub anchors: i64,
    /// One of `msdeform_reference_kind`.
    pub kind: i32,
    /// One of `msdeform_reference_of`.
    pub reference_of: i32,
    /// What an offset of one moves in a level of one point: a part of the box. Points have none. Initially 0.5.
    pub offset_scale: f32,
    /// 1: the logits are the weights, without a softmax.
    pub raw_weights: i32,
    /// 1: the nearest pixel is taken, at the border the last one, instead of interpolating. Locations have no gradient then.
    pub nearest: i32,
    /// Zero.
    pub reserved: i32,
}

/// What describes a call. Start from `msdeform_problem_description_init`: one image, head, channel and point, f32,
/// interleaved; queries and levels must be set. Sizes may be 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_problem_description {
    /// sizeof(msdeform_problem_description).
    pub struct_size: usize,
    /// Images, N.
    pub batch: i64,
    /// Attention heads, M.
    pub heads: i64,
    /// Channels of one head, D.
    pub channels: i64,
    /// Queries of one image, Lq.
    pub queries: i64,
    /// Levels of the pyramid, L.
    pub level_count: i64,
    /// Height and width of each level: 2 * level_count numbers.
    pub level_sizes: *const i64,
    /// First pixel of each level, level_count numbers; null if levels follow each other.
    pub level_starts: *const i64,
    /// Pixels of the value tensor, S; 0 if the last level ends it.
    pub spatial: i64,
    /// Points on every level, P; ignored if `points_per_level` is given.
    pub points: i64,
    /// Points of each level, level_count numbers; null if all have `points`.
    pub points_per_level: *const i64,
    /// Null: locations and weights are given. Otherwise the rule by which they follow from offsets and logits.
    pub offsets: *const msdeform_offsets,
    /// Memory order of the values, one of `msdeform_layout`.
    pub layout: i32,
    /// Storage of the values and their gradient, one of `msdeform_dtype`.
    pub dtype: i32,
    /// Storage of locations and weights, or offsets and logits, and their gradients.
    pub sampling_dtype: i32,
    /// Storage of references and their gradients.
    pub reference_dtype: i32,
    /// Storage of the output and its gradient: that of the values, or f32.
    pub output_dtype: i32,
    /// Zero.
    pub reserved: i32,
}

/// What there is to know about a tensor of a problem.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_tensor_info {
    /// sizeof(msdeform_tensor_info).
    pub struct_size: usize,
    /// Bytes of the packed tensor.
    pub bytes: usize,
    /// Its elements.
    pub elements: usize,
    /// Its shape; 1 behind its last axis.
    pub shape: [i64; 5],
    /// Its axes.
    pub rank: i32,
    /// Its storage, one of `msdeform_dtype`.
    pub dtype: i32,
}

growing! {
    msdeform_offsets 40;
    msdeform_problem_description 64 + 6 * size_of::<usize>();
    msdeform_tensor_info 48 + 3 * size_of::<usize>();
}

/// A checked description of a call. It never changes: any number of threads may use one at the same time, and it may be
/// destroyed while plans made from it live on.
#[derive(Debug)]
pub struct msdeform_problem {
    pub(crate) problem: Problem,
}

/// Sets every field of a description to what it is unless said; queries and level_count to -1, for they must be said.
/// `struct_size` is sizeof(msdeform_problem_description).
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_problem_description_init(
    description: *mut msdeform_problem_description,
    struct_size: usize,
) -> msdeform_status {
    let initial = msdeform_problem_description {
        struct_size,
        batch: 1,
        heads: 1,
        channels: 1,
        queries: -1,
        level_count: -1,
        level_sizes: std::ptr::null(),
        level_starts: std::ptr::null(),
        spatial: 0,
        points: 1,
        points_per_level: std::ptr::null(),
        offsets: std::ptr::null(),
        layout: msdeform_layout::Interleaved as i32,
        dtype: msdeform_dtype::Default as i32,
        sampling_dtype: msdeform_dtype::Default as i32,
        reference_dtype: msdeform_dtype::Default as i32,
        output_dtype: msdeform_dtype::Default as i32,
        reserved: 0,
    };
    entry(std::ptr::null_mut(), || {
        // SAFETY: the caller promises memory of that size.
        unsafe { fill(description, struct_size, &initial) }
    })
}

/// Sets every field of a rule to what it is unless said: points, one for each level, with a softmax.
/// `struct_size` is sizeof(msdeform_offsets).
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_offsets_init(
    offsets: *mut msdeform_offsets,
    struct_size: usize,
) -> msdeform_status {
    let initial = msdeform_offsets {
        struct_size,
        anchors: 0,
        kind: msdeform_reference_kind::Point as i32,
        reference_of: msdeform_reference_of::Level as i32,
        offset_scale: Offsets::from_boxes().scale(),
        raw_weights: 0,
        nearest: 0,
        reserved: 0,
    };
    entry(std::ptr::null_mut(), || {
        // SAFETY: the caller promises memory of that size.
        unsafe { fill(offsets, struct_size, &initial) }
    })
}

/// Checks a description and keeps what it says; neither it nor its lists are needed afterwards. The problem is
/// destroyed with `msdeform_problem_destroy`.
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_problem_create(
    description: *const msdeform_problem_description,
    problem: *mut *mut msdeform_problem,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        // SAFETY: the caller promises that pointers lead to what their types say.
        unsafe { hand_out(problem, || Ok(msdeform_problem { problem: build(description)? })) }
    })
}

/// Destroys a problem. Null is allowed.
///
/// Any thread, once, after the last use in any other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_problem_destroy(problem: *mut msdeform_problem) {
    // SAFETY: the caller gives the handle up.
    silently(|| unsafe { take_back(problem) });
}

/// Size, shape and storage of a tensor of the problem. `role` is one of `msdeform_role`; tensors that the problem has
/// not (locations where there are offsets, and the reverse) are refused. `info->struct_size` must be set.
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_problem_tensor(
    problem: *const msdeform_problem,
    role: i32,
    info: *mut msdeform_tensor_info,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        // SAFETY: the caller promises a live handle.
        let msdeform_problem { problem } = unsafe { handle("problem", problem)? };
        let roles = ROLES.map(|(code, role, _)| (code as i32, role));
        let role = constant("role", role, "those of msdeform_role", roles)?;
        refuse_other_operator(problem, role)?;
        let axes = problem.shape_of(role);
        let mut padded = [1i64; 5];
        for (to, &size) in padded.iter_mut().zip(&*axes) {
            *to = size.cast_signed() as i64;
        }
        let found = msdeform_tensor_info {
            struct_size: 0,
            bytes: problem.bytes_of(role),
            elements: problem.len_of(role),
            shape: padded,
            rank: i32::try_from(axes.len()).unwrap_or(i32::MAX),
            dtype: code_of(problem.format_of(role)) as i32,
        };
        // SAFETY: the caller promises a struct of the size that it says.
        unsafe { answer(info, &found) }
    })
}

/// The problem in a line, for logs: "N=2 M=8 D=32 Lq=300 (100x167 50x84) P=4 f16 interleaved". On success `text` holds
/// it, otherwise why not.
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_problem_text(
    problem: *const msdeform_problem,
    text: *mut msdeform_message,
) -> msdeform_status {
    write_text(text, || {
        // SAFETY: the caller promises a live handle.
        Ok(unsafe { handle("problem", problem)? }.problem.to_string())
    })
}

/// # Safety
/// Pointers lead to what their types say.
unsafe fn build(description: *const msdeform_problem_description) -> Result<Problem, Failure> {
    // SAFETY: passed on from the caller.
    let given = unsafe { read(description)? };
    if given.queries == -1 {
        return Err(Failure::Unset("queries"));
    }
    if given.level_count == -1 {
        return Err(Failure::Unset("level_count"));
    }
    let levels = size("level_count", given.level_count)?;
    let numbers =
        levels.checked_mul(2).ok_or(msdeform::Error::TooLarge { tensor: "level_sizes" })?;
    // SAFETY: passed on from the caller, as are the next.
    let sizes = unsafe { list("level_sizes", given.level_sizes, numbers)? };
    let dtype = dtype("dtype", given.dtype)?.unwrap_or(DType::F32);
    let mut builder = Problem::builder()
        .batch(size("batch", given.batch)?)
        .heads(size("heads", given.heads)?)
        .channels(size("channels", given.channels)?)
        .queries(size("queries", given.queries)?)
        .levels(sizes.as_chunks::<2>().0.iter().map(|&[height, width]| (height, width)))
        .layout(layout(given.layout)?)
        .dtype(dtype);
    if !given.level_starts.is_null() {
        // SAFETY: as above.
        let starts = unsafe { list("level_starts", given.level_starts, levels)? };
        builder = builder.level_starts(starts.iter().copied());
    }
    if given.spatial != 0 {
        builder = builder.spatial(size("spatial", given.spatial)?);
    }
    builder = if given.points_per_level.is_null() {
        builder.points(size("points", given.points)?)
    } else {
        // SAFETY: as above.
        let points = unsafe { list("points_per_level", given.points_per_level, levels)? };
        let points = points.iter().map(|&points| size("points_per_level", points));
        builder.points_per_level(points.collect::<Result<Vec<_>, _>>()?)
    };
    if given.reserved != 0 {
        return Err(unknown("reserved", given.reserved, "0"));
    }
    if let Some(dtype) = self::dtype("output_dtype", given.output_dtype)? {
        builder = builder.output_dtype(dtype);
    }
    if let Some(dtype) = self::dtype("sampling_dtype", given.sampling_dtype)? {
        builder = builder.sampling_dtype(dtype);
    }
    if let Some(dtype) = self::dtype("reference_dtype", given.reference_dtype)? {
        builder = builder.reference_dtype(dtype);
    }
    if !given.offsets.is_null() {
        // SAFETY: as above.
        builder = builder.offsets(rule(&unsafe { read(given.offsets)? })?);
    }
    Ok(builder.build()?)
}

fn rule(given: &msdeform_offsets) -> Result<Offsets, Failure> {
    use msdeform_reference_kind::{Box, Point};
    use msdeform_reference_of::{Anchor, Level, Query};
    let kinds = [(Point as i32, Offsets::from_points()), (Box as i32, Offsets::from_boxes())];
    let mut rule = constant("kind", given.kind, "MSDEFORM_REFERENCE_KIND_POINT, _BOX", kinds)?;
    let known = "MSDEFORM_REFERENCE_OF_LEVEL, _QUERY, _ANCHOR";
    rule = match constant(
        "reference_of",
        given.reference_of,
        known,
        [Level, Query, Anchor].map(|of| (of as i32, of)),
    )? {
        Level => rule,
        Query => rule.one_for_all_levels(),
        Anchor => rule.anchors(size("anchors", given.anchors)?),
    };
    rule = rule.offset_scale(given.offset_scale);
    if flag("raw_weights", given.raw_weights)? {
        rule = rule.raw_weights();
    }
    if flag("nearest", given.nearest)? {
        rule = rule.nearest();
    }
    match given.reserved {
        0 => Ok(rule),
        reserved => Err(unknown("reserved", reserved, "0")),
    }
}

/// Refuses a tensor that the problem's operator does not have, because the call would ignore it.
pub(crate) fn refuse_other_operator(problem: &Problem, role: Role) -> Result<(), Failure> {
    let operator = problem.operator();
    // Every tensor of an operator is one of a backward call, except the output.
    let mut own = operator.tensors(Direction::Backward).map(|(role, _)| role);
    if role == operator.output || own.any(|own| own == role) {
        return Ok(());
    }
    let inputs: Vec<String> = operator.inputs.iter().map(|input| format!("`{input}`")).collect();
    let reason = format!(
        "the problem is one of the {} operator, which reads {}; set `{role}` to zero",
        operator.name,
        inputs.join(", ")
    );
    Err(Failure::WrongTensor { tensor: role.name(), reason })
}

fn size(name: &'static str, value: i64) -> Result<usize, Failure> {
    usize::try_from(value).map_err(|_| {
        msdeform::Error::Negative { name: name.to_owned(), value: i128::from(value) }.into()
    })
}

pub(crate) fn unknown(name: &'static str, value: i32, known: &'static str) -> Failure {
    Failure::UnknownConstant { name, value: i64::from(value), known }
}

pub(crate) fn flag(name: &'static str, value: i32) -> Result<bool, Failure> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(unknown(name, other, "0, 1")),
    }
}

/// The meaning of a number that must be a constant of an enumeration.
pub(crate) fn constant<T>(
    name: &'static str,
    code: i32,
    known: &'static str,
    constants: impl IntoIterator<Item = (i32, T)>,
) -> Result<T, Failure> {
    let mut constants = constants.into_iter();
    let found = constants.find(|(constant, _)| *constant == code).map(|(_, meaning)| meaning);
    found.ok_or_else(|| unknown(name, code, known))
}

/// `None` is the default.
fn dtype(name: &'static str, code: i32) -> Result<Option<DType>, Failure> {
    let known = "MSDEFORM_DTYPE_DEFAULT, _F32, _F16, _BF16, _F64";
    let dtypes = DType::ALL.map(|dtype| (code_of(dtype) as i32, Some(dtype)));
    constant(name, code, known, [(msdeform_dtype::Default as i32, None)].into_iter().chain(dtypes))
}

const fn code_of(dtype: DType) -> msdeform_dtype {
    match dtype {
        DType::F32 => msdeform_dtype::F32,
        DType::F16 => msdeform_dtype::F16,
        DType::Bf16 => msdeform_dtype::Bf16,
        DType::F64 => msdeform_dtype::F64,
    }
}

fn layout(code: i32) -> Result<ValueLayout, Failure> {
    use msdeform_layout::{HeadMajor, HeadMajorPadded, Interleaved};
    let known = "MSDEFORM_LAYOUT_INTERLEAVED, _HEAD_MAJOR, _HEAD_MAJOR_PADDED";
    let layouts = [
        (Interleaved as i32, ValueLayout::Interleaved),
        (HeadMajor as i32, ValueLayout::HeadMajor),
        (HeadMajorPadded as i32, ValueLayout::HeadMajorPadded),
    ];
    constant("layout", code, known, layouts)
}
