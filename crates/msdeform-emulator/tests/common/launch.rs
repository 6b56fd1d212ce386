//! A call as the emulator runs it: steps, parameters, device memory.

use std::any::Any;
use std::collections::BTreeSet;

use msdeform::{Access, Problem, Role};
use msdeform_cuda::variants::{Call, Configuration, Variant};
use msdeform_cuda::{DeviceProps, INLINE_LEVELS, Region, Step, entry_name, level_geometry};
use msdeform_cuda_lab::preamble::{LevelTextures, TileMaps};
use msdeform_emulator::{
    Buffer, Launch, LaunchStep, Order, Specialisation, TENSOR_MAP_BYTES, TensorMap,
    placeholder_address,
};
use msdeform_lab::{Case, HostTensors};

/// Builds the buffers of a launch.
#[derive(Default)]
struct Memory {
    buffers: Vec<Buffer>,
}

impl Memory {
    /// Adds a buffer; returns its placeholder address.
    fn add(&mut self, buffer: Buffer, offset: u32) -> u64 {
        let index = u8::try_from(self.buffers.len()).unwrap();
        self.buffers.push(buffer.misaligned_by(offset));
        placeholder_address(index) + u64::from(offset)
    }
}

/// A configured call and the way it is run.
pub struct ConfiguredCall<'a> {
    pub id: &'a str,
    /// The kernels that were compiled, in their order.
    pub entries: &'a [String],
    pub case: &'a Case,
    pub inputs: &'a HostTensors,
    pub device: &'a DeviceProps,
    pub configuration: &'a Configuration,
    pub order: Order,
    pub block_order: Order,
}

impl ConfiguredCall<'_> {
    /// The launch; the buffers it writes are the expected tensors in their order, then the workspace.
    pub fn launch(&self) -> Launch {
        let Self { case, inputs, configuration, .. } = self;
        let call = &case.call(self.device);
        let problem = call.problem;
        let mut memory = Memory::default();
        let level_table = if problem.levels().len() > INLINE_LEVELS {
            memory.add(Buffer::input(level_table_bytes(problem)), 0)
        } else {
            0
        };
        let mut params = configuration.params(call, level_table).unwrap();
        let (mut value, mut written) = (0, Vec::new());
        for (place, (role, access)) in call.operator().tensors(call.direction()).enumerate() {
            if !call.has(role) {
                continue;
            }
            let buffer = match access {
                Access::Read => Buffer::input(case.laid_out(role, inputs).bytes().to_vec()),
                Access::Write => {
                    written.push((role, memory.buffers.len()));
                    Buffer::output(problem.bytes_of(role))
                }
            };
            let address = memory.add(buffer, case.offset_bytes(role) as u32);
            params.set_tensor(place, address);
            value = if role == Role::Value { address } else { value };
        }
        // Poisoned like an output, because a step must not read what no step has written.
        if configuration.pipeline.workspace_bytes > 0 {
            let workspace = Buffer::output(configuration.pipeline.workspace_bytes);
            params.set_workspace(memory.add(workspace, 0));
        }
        let mut bytes = tile_map_bytes(call, configuration, value);
        bytes.extend(params.words().iter().flat_map(|word| word.to_le_bytes()));
        self.steps(memory, bytes, &written)
    }

    fn steps(&self, memory: Memory, params: Vec<u8>, written: &[(Role, usize)]) -> Launch {
        let workspace = memory.buffers.len() - 1;
        let step = |step: &Step| match *step {
            Step::Launch { name, geometry, .. } => {
                let entry = entry_name(self.id, name);
                LaunchStep::Kernel {
                    entry: self.entries.iter().position(|known| *known == entry).unwrap(),
                    grid: geometry.grid,
                    block: geometry.block,
                    shared_bytes: geometry.shared_bytes as usize,
                }
            }
            Step::Zero(Region::Tensor(role)) => {
                let (_, index) = *written.iter().find(|(known, _)| *known == role).unwrap();
                let bytes = memory.buffers[index].bytes.len();
                LaunchStep::Zero { buffer: index as u8, offset: 0, bytes }
            }
            Step::Zero(Region::Workspace { offset, bytes }) => {
                LaunchStep::Zero { buffer: workspace as u8, offset, bytes }
            }
        };
        let steps = self.configuration.pipeline.steps.iter().map(step).collect();
        let (order, block_order) = (self.order, self.block_order);
        Launch { steps, order, block_order, params, buffers: memory.buffers }
    }
}

/// The kernels that these configurations of a variant launch, each once.
pub fn entries<'a>(
    id: &str,
    configurations: impl Iterator<Item = &'a Configuration>,
) -> Vec<String> {
    let steps = configurations.flat_map(|configuration| configuration.pipeline.launches());
    let names: BTreeSet<String> = steps.map(|(step, _)| entry_name(id, step)).collect();
    names.into_iter().collect()
}

/// The kernels of a configuration, compiled with its macros.
pub fn specialisation(
    variant: &Variant,
    entries: Vec<String>,
    defines: Vec<String>,
) -> Specialisation {
    let headers = super::kernel_folders();
    let places = headers.iter().map(|folder| folder.join(variant.source.name));
    let source = places.into_iter().find(|place| place.exists()).unwrap();
    Specialisation { source, headers, entries, defines }
}

/// The kernels of a configuration in the order of their entries. Kernels with contradicting macros are compiled apart,
/// as for a GPU, because the data that one step writes for another may depend on them.
pub fn compiled_apart(
    variant: &Variant,
    configuration: &Configuration,
    call: &Call<'_>,
) -> Vec<Specialisation> {
    let mut apart: Vec<Specialisation> = Vec::new();
    for unit in configuration.units(variant, call) {
        let entry = entry_name(variant.spec.id, unit.step);
        let fits = |other: &&mut Specialisation| !contradict(&other.defines, &unit.defines);
        match apart.iter_mut().find(fits) {
            None => apart.push(specialisation(variant, vec![entry], unit.defines)),
            Some(other) => {
                other.entries.push(entry);
                let new = unit.defines.into_iter().filter(|define| !other.defines.contains(define));
                let new: Vec<String> = new.collect();
                other.defines.extend(new);
            }
        }
    }
    apart
}

/// Whether a macro has two values.
fn contradict(one: &[String], other: &[String]) -> bool {
    let name = |define: &str| define.split('=').next().map(str::to_owned);
    one.iter().any(|a| other.iter().any(|b| a != b && name(a) == name(b)))
}

/// The tensor maps that the parameter begins with, if any.
fn tile_map_bytes(call: &Call<'_>, configuration: &Configuration, value: u64) -> Vec<u8> {
    let preamble = configuration.preamble.as_ref().map(|recipe| -> &dyn Any { recipe.as_ref() });
    let Some(maps) = preamble.and_then(|recipe| recipe.downcast_ref::<TileMaps>()) else {
        return Vec::new();
    };
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
    bytemuck::cast_slice(&level_geometry(problem).unwrap()).to_vec()
}

/// Whether a configuration's parameter begins with textures, which are not emulated.
pub fn has_textures(configuration: &Configuration) -> bool {
    let is = |preamble: &dyn Any| preamble.is::<LevelTextures>();
    configuration.preamble.as_ref().is_some_and(|preamble| is(preamble.as_ref()))
}
