//! What a kernel is given: the mirror of `kernels/params.cuh`.

use msdeform::Problem;

use crate::strides::{OutputStrides, ValueStrides};

/// Levels that travel inside the parameter. A model has 1 to 5; more than this go through a table in
/// device memory, which only the general kernels read.
pub const INLINE_LEVELS: usize = 16;

/// One level as kernels see it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// What both directions are told about the call; the last part of either parameter. A kernel declares
/// only as many levels as it was compiled for, and the driver copies the part it declares.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallShape {
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
    /// Queries are a raster of this width; 0 if nothing is known. Scheduling only.
    pub query_raster_width: i32,
    /// Belongs to the variant. Scheduling only.
    pub grid_aux: i32,
    /// Device pointer to the levels where `level` is too small, else null.
    pub level_table: u64,
    /// The levels.
    pub level: [LevelGeometry; INLINE_LEVELS],
}

/// The parameter of every forward kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardParams {
    /// Device pointer.
    pub value: u64,
    /// Device pointer.
    pub locations: u64,
    /// Device pointer.
    pub weights: u64,
    /// Device pointer.
    pub output: u64,
    /// Device pointer; null where the pipeline needs none.
    pub workspace: u64,
    /// Sizes, strides, levels.
    pub shape: CallShape,
}

/// The parameter of every step of a backward pipeline.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardParams {
    /// Device pointer.
    pub value: u64,
    /// Device pointer.
    pub locations: u64,
    /// Device pointer.
    pub weights: u64,
    /// Device pointer.
    pub grad_output: u64,
    /// Device pointer; null where not asked for.
    pub grad_value: u64,
    /// Device pointer; null where not asked for.
    pub grad_locations: u64,
    /// Device pointer; null where not asked for.
    pub grad_weights: u64,
    /// Device pointer; null where the pipeline needs none.
    pub workspace: u64,
    /// Elements from one image of the gradient of the values to the next.
    pub grad_value_batch_stride: i64,
    /// Elements from one head to the next.
    pub grad_value_head_stride: i64,
    /// Elements from one pixel of a head to the next.
    pub grad_value_pixel_stride: i64,
    /// Elements from one image of the gradient of the output to the next.
    pub grad_output_batch_stride: i64,
    /// Elements from one query to the next.
    pub grad_output_query_stride: i64,
    /// Elements from one head to the next.
    pub grad_output_head_stride: i64,
    /// Elements from one channel to the next.
    pub grad_output_channel_stride: i64,
    /// Sizes, strides of the values, levels.
    pub shape: CallShape,
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
    /// Everything but the variant's own fields. Levels beyond [`INLINE_LEVELS`] are left out.
    ///
    /// # Errors
    /// [`msdeform::Error::TooLarge`] where a size does not fit the 32 bits that kernels count an axis
    /// in.
    pub fn of(problem: &Problem, strides: ValueStrides) -> Result<Self, msdeform::Error> {
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

impl BackwardParams {
    /// Everything but the pointers: gradients of the values are packed, those of the output lie as
    /// `grad_output` says.
    #[must_use]
    pub fn of(problem: &Problem, grad_output: OutputStrides, shape: CallShape) -> Self {
        let packed = ValueStrides::packed(problem);
        Self {
            grad_value_batch_stride: packed.batch,
            grad_value_head_stride: packed.head,
            grad_value_pixel_stride: packed.pixel,
            grad_output_batch_stride: grad_output.batch,
            grad_output_query_stride: grad_output.query,
            grad_output_head_stride: grad_output.head,
            grad_output_channel_stride: grad_output.channel,
            shape,
            ..Self::default()
        }
    }
}

fn narrow(size: usize, tensor: &'static str) -> Result<i32, msdeform::Error> {
    i32::try_from(size).map_err(|_| msdeform::Error::TooLarge { tensor })
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use msdeform::ValueLayout;

    use super::*;

    /// The device's own view of the struct, compiled: a `static_assert` per field. Holds for the host
    /// compiler and NVRTC alike, since both follow the C layout rules of the 64-bit ABI.
    #[test]
    fn the_device_header_has_the_same_layout() {
        let Some(nvrtc) = crate::nvrtc::Nvrtc::for_tests() else { return };
        let mut source = String::from("#include \"params.cuh\"\nusing namespace msda;\n");
        let mut assert_offset = |name: &str, field: &str, offset: usize| {
            source += &format!(
                "static_assert(__builtin_offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n"
            );
        };
        macro_rules! same_offset {
            ($struct:ident: $($field:ident)*) => {$(
                assert_offset(
                    stringify!($struct), stringify!($field), offset_of!($struct, $field),
                );
            )*};
        }
        // A base of the parameter on the device, a field here.
        macro_rules! same_shape {
            ($struct:ident: $($field:ident)*) => {$(
                assert_offset(
                    stringify!($struct), stringify!($field), offset_of!($struct, shape.$field),
                );
            )*};
        }
        same_offset!(LevelGeometry: height width row_pitch first_sample origin);
        same_offset!(ForwardParams: value locations weights output workspace);
        same_offset!(BackwardParams: value locations weights grad_output grad_value grad_locations
            grad_weights workspace grad_value_batch_stride grad_value_head_stride
            grad_value_pixel_stride grad_output_batch_stride grad_output_query_stride
            grad_output_head_stride grad_output_channel_stride);
        same_shape!(ForwardParams: value_batch_stride value_head_stride value_pixel_stride batch
            heads queries channels levels samples query_raster_width grid_aux level_table level);
        same_shape!(BackwardParams: value_batch_stride value_head_stride value_pixel_stride batch
            heads queries channels levels samples query_raster_width grid_aux level_table level);
        macro_rules! same_size {
            ($($struct:ident)*) => {$(
                source += &format!(
                    "static_assert(sizeof({0}) == {1}, \"{0}\");\n",
                    stringify!($struct), size_of::<$struct>(),
                );
            )*};
        }
        same_size!(LevelGeometry CallShape ForwardParams BackwardParams);
        source += "extern \"C\" __global__ void layout() {}\n";
        let options = [
            "--gpu-architecture=sm_80",
            "--std=c++17",
            "-DMSDA_VALUE_DTYPE=0",
            "-DMSDA_SAMPLING_DTYPE=0",
            &format!("-DMSDA_LEVELS={INLINE_LEVELS}"),
        ]
        .map(str::to_owned);
        let compiled = nvrtc.compile("layout.cu", &source, crate::sources::HEADERS, &options);
        assert!(compiled.is_ok(), "{}", compiled.unwrap_err());
    }

    #[test]
    fn every_field_carries_its_own_number() {
        let problem = Problem::builder()
            .batch(2)
            .heads(3)
            .channels(5)
            .queries(7)
            .levels([(11, 13), (17, 19)])
            .points_per_level([2, 4])
            .layout(ValueLayout::HeadMajorPadded)
            .build()
            .unwrap();
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

        let grad_output = OutputStrides { batch: 109, query: 113, head: 0, channel: 127 };
        let params = BackwardParams::of(&problem, grad_output, shape);
        assert_eq!(params.shape, shape);
        let of_output = (
            params.grad_output_batch_stride,
            params.grad_output_query_stride,
            params.grad_output_head_stride,
            params.grad_output_channel_stride,
        );
        assert_eq!(of_output, (109, 113, 0, 127));
        let spatial = problem.spatial() as i64;
        let of_value = (
            params.grad_value_batch_stride,
            params.grad_value_head_stride,
            params.grad_value_pixel_stride,
        );
        assert_eq!(of_value, (3 * spatial * 5, spatial * 5, 5), "packed, whatever the values are");
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
