//! Loaded code and how it is launched.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction_attribute_enum as FunctionAttribute};

use super::{Context, DeviceProps, Stream, check, driver};
use crate::error::DriverError;

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchGeometry {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks of a cluster along x; 1 launches without clusters (they need compute capability 9.0).
    pub cluster: u32,
    /// Starts while the launch before it still runs, where the GPU can; the kernel waits for that one itself, and
    /// the one before is a kernel too (`kernels/ptx_launches.cuh`).
    pub overlaps: bool,
}

impl LaunchGeometry {
    /// A one-dimensional launch without shared memory.
    #[must_use]
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
            cluster: 1,
            overlaps: false,
        }
    }

    /// Dynamic shared memory that a block is given. Compilers read neighbouring words at once, up to 16 aligned bytes,
    /// also where the last of them are not used: those belong to the block too.
    fn allocated_shared_bytes(&self) -> u32 {
        self.shared_bytes.next_multiple_of(16)
    }
}

/// Code loaded into a context.
#[derive(Debug)]
pub struct Module {
    context: Context,
    raw: sys::CUmodule,
}

// SAFETY: a module handle may be used from any thread; the driver locks inside.
unsafe impl Send for Module {}
// SAFETY: as above; nothing here changes after construction.
unsafe impl Sync for Module {}

/// More dynamic shared memory than this must be asked for.
const SHARED_BYTES_WITHOUT_ASKING: u32 = 48 << 10;
/// What the system takes of each block, since compute capability 8.0.
const SHARED_BYTES_OF_THE_SYSTEM: usize = 1 << 10;

impl Module {
    /// Loads a cubin, or PTX that ends with a zero.
    #[doc(hidden)]
    pub fn load(context: &Context, cubin: &[u8]) -> crate::Result<Arc<Self>> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current; the image is whole (the compiler made it, or the cache checked
        // its hash) and carries its own size.
        unsafe { driver!(cuModuleLoadData(&raw mut raw, cubin.as_ptr().cast::<c_void>())) }?;
        Ok(Arc::new(Self { context: context.clone(), raw }))
    }

    /// An entry kernel by name.
    pub fn function(self: &Arc<Self>, name: &str) -> crate::Result<Function> {
        let _entered = self.context.enter()?;
        let mut raw = std::ptr::null_mut();
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the module is alive, the name ends with a zero, `raw` is writable.
        unsafe { driver!(cuModuleGetFunction(&raw mut raw, self.raw, name.as_ptr())) }?;
        Ok(Function { module: Arc::clone(self), raw })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: loaded in `load`, unloaded once, and no function outlives it (they hold an Arc).
            let _ = unsafe { driver!(cuModuleUnload(self.raw)) };
        }
    }
}

/// An entry kernel. Keeps its module loaded.
#[derive(Clone, Debug)]
pub struct Function {
    module: Arc<Module>,
    raw: sys::CUfunction,
}

// SAFETY: a function handle may be used from any thread; the driver locks inside.
unsafe impl Send for Function {}
// SAFETY: as above; nothing here changes after construction.
unsafe impl Sync for Function {}

impl Function {
    /// Blocks of this kernel that fit on a multiprocessor at once. The context must be current.
    fn resident_blocks(&self, geometry: &LaunchGeometry) -> Result<u32, DriverError> {
        let threads = i32::try_from(geometry.block.iter().product::<u32>()).unwrap_or(i32::MAX);
        let shared = geometry.shared_bytes as usize;
        let mut blocks = 0;
        // SAFETY: the function is alive, `blocks` is writable.
        unsafe {
            driver!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut blocks,
                self.raw,
                threads,
                shared
            ))
        }?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Asks for what a launch with this geometry needs. Once per function, before launching.
    pub(crate) fn prepare(
        &self,
        geometry: &LaunchGeometry,
        device: &DeviceProps,
    ) -> Result<(), DriverError> {
        // If this fails, the next call fails too, with a better error.
        let _entered = self.module.context.enter();
        if geometry.shared_bytes > SHARED_BYTES_WITHOUT_ASKING {
            // The limit belongs to the function, which plans share: all that there is, not what this
            // plan needs, or the next plan would take it away from this one.
            let limit = geometry.shared_bytes.max(device.shared_bytes_per_block as u32);
            let limit = i32::try_from(limit).unwrap_or(i32::MAX);
            let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is alive.
            unsafe { driver!(cuFuncSetAttribute(self.raw, attribute, limit)) }?;
        }
        // A hint: where the driver does not take it, it costs some speed and nothing else.
        let _ = self.leave_the_rest_to_l1(geometry, device);
        Ok(())
    }

    /// Shared memory and L1 are one memory, of which the driver gives shared memory more than the blocks
    /// that fit an SM can use. What L1 gets instead made gathers 1 to 5 % faster on an H200.
    fn leave_the_rest_to_l1(
        &self,
        geometry: &LaunchGeometry,
        device: &DeviceProps,
    ) -> Result<(), DriverError> {
        if geometry.shared_bytes == 0 || device.shared_bytes_per_multiprocessor == 0 {
            return Ok(());
        }
        let blocks = self.resident_blocks(geometry)? as usize;
        let used = blocks * (geometry.shared_bytes as usize + SHARED_BYTES_OF_THE_SYSTEM);
        let percent = (100 * used).div_ceil(device.shared_bytes_per_multiprocessor).min(100);
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        let mut chosen = 0;
        // SAFETY: the function is alive, `chosen` is writable.
        unsafe { driver!(cuFuncGetAttribute(&raw mut chosen, attribute, self.raw)) }?;
        // Plans share functions: what one of them needs the next must not take away.
        let percent = i32::try_from(percent).unwrap_or(100).max(chosen);
        // SAFETY: the function is alive.
        unsafe { driver!(cuFuncSetAttribute(self.raw, attribute, percent)) }
    }

    /// Queues the kernel with its one parameter, perhaps with an attribute that the geometry has not. The context must be
    /// current.
    ///
    /// # Safety
    /// `params` leads to what the kernel declares, or to something that begins with it, and what that points
    /// to is valid on the device for as long as the kernel runs.
    #[doc(hidden)]
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        geometry: &LaunchGeometry,
        extra: Option<sys::CUlaunchAttribute>,
        params: *const c_void,
    ) -> Result<(), DriverError> {
        let [grid_x, grid_y, grid_z] = geometry.grid;
        let [block_x, block_y, block_z] = geometry.block;
        let mut arguments = [params.cast_mut()];
        let wanted = [
            (geometry.cluster > 1).then(|| cluster_attribute(geometry.cluster)),
            geometry.overlaps.then(overlap_attribute),
            extra,
        ];
        // On the stack: most launches have one, and nothing else here takes memory.
        let (mut attributes, mut count) = ([overlap_attribute(); 3], 0);
        for (place, attribute) in attributes.iter_mut().zip(wanted.into_iter().flatten()) {
            *place = attribute;
            count += 1;
        }
        if count > 0 {
            let config = sys::CUlaunchConfig {
                gridDimX: grid_x,
                gridDimY: grid_y,
                gridDimZ: grid_z,
                blockDimX: block_x,
                blockDimY: block_y,
                blockDimZ: block_z,
                sharedMemBytes: geometry.allocated_shared_bytes(),
                hStream: stream.raw(),
                attrs: attributes.as_mut_ptr(),
                numAttrs: count,
            };
            let (arguments, options) = (arguments.as_mut_ptr(), std::ptr::null_mut());
            // SAFETY: as below; `config` and its attributes live through the call.
            let result =
                unsafe { sys::cuLaunchKernelEx(&raw const config, self.raw, arguments, options) };
            return check("cuLaunchKernelEx", result);
        }
        // SAFETY: as this function.
        unsafe { self.launch_with(stream, geometry, &mut arguments) }
    }

    /// Queues the kernel with parameters of its own, without attributes. The context must be current.
    ///
    /// # Safety
    /// There is an address for each parameter, in their order. Each leads to what the kernel declares, or to something that
    /// begins with it. What that points to is valid on the device for as long as the kernel runs.
    #[doc(hidden)]
    pub unsafe fn launch_with(
        &self,
        stream: &Stream,
        geometry: &LaunchGeometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        let [grid_x, grid_y, grid_z] = geometry.grid;
        let [block_x, block_y, block_z] = geometry.block;
        // SAFETY: function and stream are alive; the driver copies the parameters, of the sizes that the
        // kernel declares, before it returns; the caller answers for what they hold.
        unsafe {
            driver!(cuLaunchKernel(
                self.raw,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                geometry.allocated_shared_bytes(),
                stream.raw(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut()
            ))
        }
    }
}

/// Permission to start before the launch before is done.
fn overlap_attribute() -> sys::CUlaunchAttribute {
    // SAFETY: a C struct of integers, padding and a union of plain data.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id =
        sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    attribute
}

/// Blocks of a cluster, as a launch takes them.
fn cluster_attribute(blocks: u32) -> sys::CUlaunchAttribute {
    // SAFETY: a C struct of integers, padding and a union of plain data.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim.x = blocks;
    attribute.value.clusterDim.y = 1;
    attribute.value.clusterDim.z = 1;
    attribute
}

#[cfg(test)]
mod tests {
    use super::*;

    /// memcheck found a compiler's 16-byte load of four counters where a block had asked for one.
    #[test]
    fn a_block_gets_whole_vectors_of_shared_memory() {
        let given = |shared_bytes| {
            LaunchGeometry { shared_bytes, ..LaunchGeometry::linear(1, 32) }
                .allocated_shared_bytes()
        };
        assert_eq!([0, 1, 16, 132, 232_448].map(given), [0, 16, 16, 144, 232_448]);
    }
}
