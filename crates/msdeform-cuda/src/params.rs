//! What a kernel is given: the mirror of `kernels/params.cuh`.

use bytemuck::{Pod, Zeroable};
use msdeform::{BackwardCall, OutputStrides, Problem, Role, ValueStrides};

use crate::derived::Derived;
use crate::variants::Call;

/// Levels that travel inside the parameter. A model has 1 to 5; more than this go through a table in
/// device memory, which only the general kernels read.
pub const INLINE_LEVELS: usize = 16;

/// One level as kernels see it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct LevelGeometry {
    /// Rows.
    pub height: i32,
    /// Columns.
    pub width: i32,
    /// Pixels from one row to the next.
    pub row_pitch: i32,
    /// Where the level's samples start among a query's samples.
    pub first_sample: i32,
    /// Pixel (0, 0), in pixels from the start of the (batch, head).
    pub origin: i64,
}

/// What every kernel is told about the call; the last part of its parameter. A kernel declares
/// only as many levels as it was compiled for, and the driver copies the part it declares.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct CallShape {
    /// Elements from one image to the next.
    pub value_batch_stride: i64,
    /// Elements from one head to the next.
    pub value_head_stride: i64,
    /// Elements from one pixel of a head to the next.
    pub value_pixel_stride: i64,
    /// Images.
    pub batch: i32,
    /// Heads.
    pub heads: i32,
    /// Queries of an image.
    pub queries: i32,
    /// Channels of a head.
    pub channels: i32,
    /// Levels.
    pub levels: i32,
    /// Samples of a query and head, over all levels.
    pub samples: i32,
    /// Device pointer to the levels where `level` is too small, else null.
    pub level_table: u64,
    /// The levels.
    pub level: [LevelGeometry; INLINE_LEVELS],
}

/// The parameter of a kernel, as words: pointers to the operator's tensors in its order, to the workspace, strides of
/// the other tensors of a backward call, what the variant worked out, and the shape of the call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Params {
    words: [u64; Self::CAPACITY],
    len: usize,
    tensors: usize,
}

/// Strides in a backward parameter: of the gradient of the values, then of the gradient of the output.
const BACKWARD_STRIDES: usize = 3 + 4;

impl Params {
    /// Words of the largest one: a pointer for every role, and all else.
    const CAPACITY: usize = Role::COUNT
        + 1
        + BACKWARD_STRIDES
        + Derived::MOST_WORDS
        + size_of::<CallShape>() / size_of::<u64>();

    /// Everything but the pointers. The gradient of the values is packed, that of the output has the strides of the call.
    pub(crate) fn of(call: &Call<'_>, derived: &Derived, shape: &CallShape) -> Self {
        let tensors = call.operator().tensors(call.direction()).count();
        let mut params = Self { words: [0; Self::CAPACITY], len: tensors + 1, tensors };
        if let Some(BackwardCall { grad_output, .. }) = call.backward {
            let grad_value = ValueStrides::packed(call.problem);
            params.push(&[grad_value.batch, grad_value.head, grad_value.pixel]);
            let OutputStrides { batch, query, head, channel } = grad_output;
            params.push(&[batch, query, head, channel]);
        }
        params.push(&derived.words());
        params.push(std::slice::from_ref(shape));
        params
    }

    fn push<T: Pod>(&mut self, values: &[T]) {
        let words: &[u64] = bytemuck::cast_slice(values);
        self.words[self.len..][..words.len()].copy_from_slice(words);
        self.len += words.len();
    }

    /// Sets the pointer to a tensor, by its place among the operator's.
    pub fn set_tensor(&mut self, place: usize, address: u64) {
        self.words[..self.tensors][place] = address;
    }

    /// Sets the pointer to the workspace.
    pub fn set_workspace(&mut self, address: u64) {
        self.words[self.tensors] = address;
    }

    /// What the kernel is given.
    pub fn words(&self) -> &[u64] {
        &self.words[..self.len]
    }
}

impl std::fmt::Debug for Params {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.words()).finish()
    }
}

/// Every level of a problem, as kernels see it.
///
/// # Errors
/// [`msdeform::Error::TooLarge`] where a size does not fit the 32 bits that kernels count an axis in.
pub fn level_geometry(problem: &Problem) -> Result<Vec<LevelGeometry>, msdeform::Error> {
    let layout = problem.layout();
    let value = |size| narrow(size, "value");
    problem
        .levels()
        .iter()
        .enumerate()
        .map(|(index, level)| {
            Ok(LevelGeometry {
                height: value(level.height)?,
                width: value(level.width)?,
                row_pitch: value(level.row_pitch(layout))?,
                first_sample: narrow(problem.level_samples(index).start, "sampling_locations")?,
                // Below isize::MAX / 8: Problem checked that.
                origin: level.origin(layout) as i64,
            })
        })
        .collect()
}

impl CallShape {
    /// Levels beyond [`INLINE_LEVELS`] are left out.
    ///
    /// # Errors
    /// [`msdeform::Error::TooLarge`] where a size does not fit the 32 bits that kernels count an axis
    /// in.
    pub(crate) fn of(problem: &Problem, strides: ValueStrides) -> Result<Self, msdeform::Error> {
        let mut shape = Self {
            value_batch_stride: strides.batch,
            value_head_stride: strides.head,
            value_pixel_stride: strides.pixel,
            batch: narrow(problem.batch(), "value")?,
            heads: narrow(problem.heads(), "value")?,
            queries: narrow(problem.queries(), "output")?,
            channels: narrow(problem.channels(), "value")?,
            levels: narrow(problem.levels().len(), "sampling_locations")?,
            samples: narrow(problem.samples(), "sampling_locations")?,
            ..Self::default()
        };
        for (slot, level) in shape.level.iter_mut().zip(level_geometry(problem)?) {
            *slot = level;
        }
        Ok(shape)
    }
}

fn narrow(size: usize, tensor: &'static str) -> Result<i32, msdeform::Error> {
    i32::try_from(size).map_err(|_| msdeform::Error::TooLarge { tensor })
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use msdeform::{Direction, Offsets, ProblemBuilder, ValueLayout};

    use super::*;
    use crate::driver::DeviceProps;
    use crate::jit::Recipe;
    use crate::nvrtc::Nvrtc;
    use crate::sources::{HEADERS, SourceFile};

    fn problem() -> Problem {
        builder().build().unwrap()
    }

    fn builder() -> ProblemBuilder {
        Problem::builder()
            .batch(2)
            .heads(3)
            .channels(5)
            .queries(7)
            .levels([(11, 13), (17, 19)])
            .points_per_level([2, 4])
            .layout(ValueLayout::HeadMajorPadded)
    }

    /// The strides in a parameter, as the header calls them.
    const STRIDES: [&str; BACKWARD_STRIDES] = [
        "grad_value_batch_stride",
        "grad_value_head_stride",
        "grad_value_pixel_stride",
        "grad_output_batch_stride",
        "grad_output_query_stride",
        "grad_output_head_stride",
        "grad_output_channel_stride",
    ];

    /// The device's own view of the structs, compiled: a `static_assert` per field. Holds for the host
    /// compiler and NVRTC alike, since both follow the C layout rules of the 64-bit ABI.
    #[test]
    fn the_device_header_has_the_same_layout() {
        let Some(nvrtc) = Nvrtc::for_tests() else { return };
        assert_same_layout(&nvrtc, &problem(), &[]);
        let from_offsets = builder().offsets(Offsets::from_points()).build().unwrap();
        let rule = [
            "FROM_OFFSETS=1",
            "REFERENCE_DTYPE=0",
            "REFERENCE_OF=0",
            "ANCHORS=0",
            "BOXES=0",
            "SOFTMAX=1",
            "NEAREST=0",
        ];
        assert_same_layout(&nvrtc, &from_offsets, &rule);
    }

    fn assert_same_layout(nvrtc: &Nvrtc, problem: &Problem, rule: &[&str]) {
        let device = DeviceProps::h200();
        let mut derived = Derived::of_count("lanes", 4).unwrap();
        derived.size("entries_at", 256);
        derived.levels("first_tile", [0; INLINE_LEVELS]).unwrap();
        let derived_bytes = 8 * derived.words().len();
        let mut fields: Vec<(&str, &str, usize)> = Vec::new();
        let mut sizes = vec![
            ("LevelGeometry", size_of::<LevelGeometry>()),
            ("CallShape", derived_bytes + size_of::<CallShape>()),
        ];
        macro_rules! offsets {
            ($struct:ident in $name:expr, $first:expr; $($field:ident)*) => {
                $(fields.push(($name, stringify!($field), $first + offset_of!($struct, $field)));)*
            };
        }
        offsets!(LevelGeometry in "LevelGeometry", 0; height width row_pitch first_sample origin);
        for (direction, name) in Direction::ALL.into_iter().zip(["ForwardParams", "BackwardParams"])
        {
            let call = Call::in_direction(direction, problem, &device);
            let tensors = call.operator().tensors(direction).map(|(role, _)| role.field());
            let strides = if call.backward.is_some() { &STRIDES[..] } else { &[] };
            let header = tensors.chain(["workspace"]).chain(strides.iter().copied());
            let header: Vec<&str> = header.collect();
            fields.extend(header.iter().enumerate().map(|(word, field)| (name, *field, 8 * word)));
            let first = 8 * header.len();
            fields.extend([
                (name, "lanes", first),
                (name, "entries_at", first + 8),
                (name, "first_tile", first + 16),
            ]);
            // A base of the parameter on the device.
            offsets!(CallShape in name, first + derived_bytes; value_batch_stride value_head_stride
                value_pixel_stride batch heads queries channels levels samples
                level_table level);
            let params = Params::of(&call, &derived, &CallShape::default());
            sizes.push((name, 8 * params.words().len()));
        }
        let mut source = String::from("#include \"params.cuh\"\nusing namespace msda;\n");
        for (name, field, offset) in fields {
            source += &format!(
                "static_assert(__builtin_offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n"
            );
        }
        for (name, size) in sizes {
            source += &format!("static_assert(sizeof({name}) == {size}, \"{name}\");\n");
        }
        source += "extern \"C\" __global__ void layout() {}\n";
        let mut defines = [
            "-DMSDA_VALUE_DTYPE=0",
            "-DMSDA_SAMPLING_DTYPE=0",
            &format!("-DMSDA_LEVELS={INLINE_LEVELS}"),
            &format!("-DMSDA_DERIVED={}", derived.declaration().unwrap()),
        ]
        .map(str::to_owned)
        .to_vec();
        defines.extend(rule.iter().map(|define| format!("-DMSDA_{define}")));
        let source = SourceFile { name: "layout.cu", text: source.leak() };
        let compiled = Recipe::of_source(source, HEADERS, "sm_80", &defines).compile(nvrtc);
        assert!(compiled.is_ok(), "{}", compiled.unwrap_err());
    }

    #[test]
    fn every_field_carries_its_own_number() {
        let (problem, device) = (problem(), DeviceProps::h200());
        let strides = ValueStrides { batch: 101, head: 103, pixel: 107 };
        let shape = CallShape::of(&problem, strides).unwrap();
        let CallShape { batch, heads, queries, channels, levels, samples, .. } = shape;
        assert_eq!((batch, heads, queries, channels, levels, samples), (2, 3, 7, 5, 2, 6));
        let strides = (shape.value_batch_stride, shape.value_head_stride, shape.value_pixel_stride);
        assert_eq!(strides, (101, 103, 107));
        let second = LevelGeometry {
            height: 17,
            width: 19,
            row_pitch: 21,
            first_sample: 2,
            origin: 13 * 15 + 22,
        };
        assert_eq!(shape.level[1], second);
        assert_eq!(shape.level[2], LevelGeometry::default());

        let mut call = Call::in_direction(Direction::Backward, &problem, &device);
        if let Some(backward) = &mut call.backward {
            backward.grad_output = OutputStrides { batch: 109, query: 113, head: 0, channel: 127 };
        }
        let derived = Derived::of_count("lanes", 131).unwrap();
        let mut params = Params::of(&call, &derived, &shape);
        (0..7).for_each(|place| params.set_tensor(place, 1 + place as u64));
        params.set_workspace(8);
        let (header, rest) = params.words().split_at(16);
        let spatial = problem.spatial() as u64;
        assert_eq!(header[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(
            header[8..11],
            [3 * spatial * 5, spatial * 5, 5],
            "packed, for any layout of values"
        );
        assert_eq!(header[11..], [109, 113, 0, 127, 131]);
        assert_eq!(rest, bytemuck::cast_slice::<_, u64>(&[shape]));
    }

    #[test]
    fn an_axis_past_31_bits_is_refused_and_not_truncated() {
        let problem =
            Problem::builder().queries(1 << 31).levels::<i64>([]).points(0).build().unwrap();
        let strides = ValueStrides::packed(&problem);
        let error = CallShape::of(&problem, strides).unwrap_err();
        assert!(matches!(error, msdeform::Error::TooLarge { tensor: "output" }));
    }
}
