//! A call as the emulator runs it: steps, parameters, device memory.

use msdeform::Problem;
use msdeform_cuda::variants::{Call, Configuration, Variant};
use msdeform_cuda::{
    BackwardParams, CallShape, ForwardParams, INLINE_LEVELS, LevelGeometry, Region, Step,
    entry_name, level_geometry,
};
use msdeform_emulator::{
    Buffer, Launch, LaunchStep, Order, Specialisation, TENSOR_MAP_BYTES, TensorMap,
    placeholder_address,
};

/// Device memory in the making.
#[derive(Default)]
struct Memory {
    buffers: Vec<Buffer>,
}

impl Memory {
    /// Adds a buffer; returns the address that stands for it.
    fn add(&mut self, buffer: Buffer, offset: u32) -> u64 {
        let index = u8::try_from(self.buffers.len()).unwrap();
        self.buffers.push(buffer.misaligned_by(offset));
        placeholder_address(index) + u64::from(offset)
    }
}

/// What a call reads, as it lies in memory.
#[derive(Clone, Copy)]
pub struct InputBytes<'a> {
    pub value: &'a [u8],
    pub locations: &'a [u8],
    pub weights: &'a [u8],
    /// Only a backward call's.
    pub grad_output: &'a [u8],
}

/// Bytes from an aligned address to the start of each tensor.
#[derive(Clone, Copy, Default)]
pub struct ByteOffsets {
    pub value: u32,
    pub locations: u32,
    pub weights: u32,
    pub grad_output: u32,
    /// Of the output, or of the gradient of the values.
    pub first: u32,
    pub grad_locations: u32,
    pub grad_weights: u32,
}

/// A configured call, and how it is run.
pub struct Prepared<'a> {
    pub id: &'a str,
    /// The kernels that were compiled, in their order.
    pub entries: &'a [String],
    pub call: Call<'a>,
    pub configuration: &'a Configuration,
    pub inputs: InputBytes<'a>,
    pub offsets: ByteOffsets,
    pub order: Order,
    pub block_order: Order,
}

impl Prepared<'_> {
    /// The launch; the buffers it writes are the expected tensors in their order, then the workspace.
    pub fn launch(&self) -> Launch {
        let Self { call, configuration, inputs, offsets, .. } = self;
        let problem = call.problem;
        let mut memory = Memory::default();
        let mut input = |bytes: &[u8], offset| memory.add(Buffer::input(bytes.to_vec()), offset);
        let value = input(inputs.value, offsets.value);
        let locations = input(inputs.locations, offsets.locations);
        let weights = input(inputs.weights, offsets.weights);
        let level_table = if problem.levels().len() > INLINE_LEVELS {
            input(&level_table_bytes(problem), 0)
        } else {
            0
        };
        let value_bytes = problem.dtype().size_bytes();
        let sampling_bytes = problem.sampling_dtype().size_bytes();

        let Some(backward) = call.backward else {
            let mut params = configuration.forward_params(call).unwrap();
            (params.value, params.locations, params.weights) = (value, locations, weights);
            let output_bytes = problem.output_len() * value_bytes;
            params.output = memory.add(Buffer::output(output_bytes), offsets.first);
            params.shape.level_table = level_table;
            if configuration.pipeline.workspace_bytes > 0 {
                params.workspace =
                    memory.add(Buffer::output(configuration.pipeline.workspace_bytes), 0);
            }
            let mut bytes = tile_map_bytes(call, configuration, value);
            bytes.extend(bytes_of_forward(&params));
            return self.steps(memory, bytes, None);
        };

        let mut params = configuration.backward_params(call).unwrap();
        (params.value, params.locations, params.weights) = (value, locations, weights);
        params.grad_output =
            memory.add(Buffer::input(inputs.grad_output.to_vec()), offsets.grad_output);
        params.shape.level_table = level_table;
        let grad_value = memory.buffers.len();
        let mut gradient = |asked: bool, bytes: usize, offset| {
            if asked { memory.add(Buffer::output(bytes), offset) } else { 0 }
        };
        let gradients = backward.gradients;
        params.grad_value =
            gradient(gradients.value, problem.value_len() * value_bytes, offsets.first);
        params.grad_locations = gradient(
            gradients.locations,
            problem.locations_len() * sampling_bytes,
            offsets.grad_locations,
        );
        params.grad_weights = gradient(
            gradients.weights,
            problem.weights_len() * sampling_bytes,
            offsets.grad_weights,
        );
        // Poisoned like an output: what a step does not write first, it must not read.
        if configuration.pipeline.workspace_bytes > 0 {
            params.workspace =
                memory.add(Buffer::output(configuration.pipeline.workspace_bytes), 0);
        }
        self.steps(memory, bytes_of_backward(&params), Some(grad_value))
    }

    fn steps(&self, memory: Memory, params: Vec<u8>, grad_value: Option<usize>) -> Launch {
        let workspace = memory.buffers.len() - 1;
        let step = |step: &Step| match *step {
            Step::Launch { name, geometry } => {
                let entry = entry_name(self.id, name);
                LaunchStep::Kernel {
                    entry: self.entries.iter().position(|known| *known == entry).unwrap(),
                    grid: geometry.grid,
                    block: geometry.block,
                    shared_bytes: geometry.shared_bytes as usize,
                }
            }
            Step::Zero(Region::GradValue) => {
                let index = grad_value.unwrap();
                let bytes = memory.buffers[index].bytes.len();
                LaunchStep::Zero { buffer: index as u8, offset: 0, bytes }
            }
            Step::Zero(Region::Workspace { offset, bytes }) => {
                LaunchStep::Zero { buffer: workspace as u8, offset, bytes }
            }
        };
        let steps = self.configuration.pipeline.steps.iter().map(step).collect();
        let mut launch = Launch::of_steps(steps);
        (launch.order, launch.block_order) = (self.order, self.block_order);
        (launch.params, launch.buffers) = (params, memory.buffers);
        launch
    }
}

/// The kernels of a configuration, compiled with its macros.
pub fn specialisation(
    variant: &dyn Variant,
    entries: Vec<String>,
    defines: Vec<String>,
) -> Specialisation {
    let headers = super::kernels_folder();
    Specialisation { source: headers.join(variant.source().name), headers, entries, defines }
}

/// The tensor maps that the parameter begins with, if any.
fn tile_map_bytes(call: &Call<'_>, configuration: &Configuration, value: u64) -> Vec<u8> {
    let Some(maps) = configuration.tile_maps else { return Vec::new() };
    let mut bytes = Vec::new();
    for map in maps.of(call).unwrap() {
        let encoded = TensorMap {
            base: value + map.offset_bytes,
            element_bytes: map.element_bytes,
            size: map.size,
            stride_bytes: map.stride_bytes,
            box_size: map.tile,
        };
        bytes.extend(encoded.encode().unwrap());
    }
    bytes.resize(maps.capacity(call.problem.levels().len()) * TENSOR_MAP_BYTES, 0);
    bytes
}

fn level_table_bytes(problem: &Problem) -> Vec<u8> {
    let levels = level_geometry(problem).unwrap();
    levels
        .iter()
        .flat_map(|level| {
            let numbers = [level.height, level.width, level.row_pitch, level.first_sample];
            let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            bytes.extend(level.origin.to_le_bytes());
            bytes
        })
        .collect()
}

fn bytes_of_forward(params: &ForwardParams) -> Vec<u8> {
    // SAFETY: no byte of it is padding, see below.
    unsafe { bytes_of(params) }
}

fn bytes_of_backward(params: &BackwardParams) -> Vec<u8> {
    // SAFETY: no byte of it is padding, see below.
    unsafe { bytes_of(params) }
}

/// # Safety
/// Every byte of a `T` is initialised: there is no padding.
unsafe fn bytes_of<T>(params: &T) -> Vec<u8> {
    // SAFETY: as the caller says; the slice is as long as the structure.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(params).cast::<u8>(), size_of::<T>()) }
        .to_vec()
}

/// Kept beside the code that relies on it: no byte of the parameters is padding.
const _: () = {
    assert!(size_of::<LevelGeometry>() == 24);
    assert!(size_of::<CallShape>() == 3 * 8 + 8 * 4 + 8 + INLINE_LEVELS * 24);
    assert!(size_of::<ForwardParams>() == 5 * 8 + size_of::<CallShape>());
    assert!(size_of::<BackwardParams>() == 15 * 8 + size_of::<CallShape>());
};
