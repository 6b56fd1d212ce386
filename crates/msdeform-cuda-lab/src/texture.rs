//! Layered textures: an array that kernels write as a surface and sample with the filter of the hardware.

use cudarc::driver::sys;

use crate::preamble::TextureShape;
use msdeform_cuda::{Context, Result, driver};

/// Four halves.
const TEXEL_BYTES: usize = 8;

/// An array of half4 texels in layers, with a texture (bilinear, coordinates in texels, zero outside) and a
/// surface of it.
#[derive(Debug)]
pub struct LayeredTexture {
    context: Context,
    array: sys::CUarray,
    /// The handle that kernels sample through.
    pub texture: sys::CUtexObject,
    /// The handle that kernels write through.
    pub surface: sys::CUsurfObject,
    /// Of its texels.
    pub bytes: usize,
}

// SAFETY: the driver lets any thread use these handles, and the fields do not change after construction.
unsafe impl Send for LayeredTexture {}
// SAFETY: as above.
unsafe impl Sync for LayeredTexture {}

impl LayeredTexture {
    /// Allocates the array; its contents are undefined until a kernel has written them.
    pub fn new(context: &Context, shape: TextureShape) -> Result<Self> {
        let _entered = context.enter()?;
        let TextureShape { width, height, layers } = shape;
        let descriptor = sys::CUDA_ARRAY3D_DESCRIPTOR {
            Width: width,
            Height: height,
            Depth: layers,
            Format: sys::CUarray_format::CU_AD_FORMAT_HALF,
            NumChannels: 4,
            Flags: sys::CUDA_ARRAY3D_LAYERED | sys::CUDA_ARRAY3D_SURFACE_LDST,
        };
        // From here on `drop` frees what was created so far.
        let mut made = Self {
            context: context.clone(),
            array: std::ptr::null_mut(),
            texture: 0,
            surface: 0,
            bytes: width * height * layers * TEXEL_BYTES,
        };
        // SAFETY: the context is current, the handle is writable, the descriptor lives through the call.
        unsafe { driver!(cuArray3DCreate_v2(&raw mut made.array, &raw const descriptor)) }?;
        // SAFETY: C structs of integers, pointers and unions of those.
        let (mut resource, mut sampler): (sys::CUDA_RESOURCE_DESC, sys::CUDA_TEXTURE_DESC) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        resource.resType = sys::CUresourcetype::CU_RESOURCE_TYPE_ARRAY;
        resource.res.array.hArray = made.array;
        sampler.addressMode = [sys::CUaddress_mode::CU_TR_ADDRESS_MODE_BORDER; 3];
        sampler.filterMode = sys::CUfilter_mode::CU_TR_FILTER_MODE_LINEAR;
        let (resource, sampler) = (&raw const resource, &raw const sampler);
        let no_view = std::ptr::null();
        // SAFETY: the array is alive; the handles are writable; the descriptions live through the calls.
        unsafe {
            driver!(cuTexObjectCreate(&raw mut made.texture, resource, sampler, no_view))?;
            driver!(cuSurfObjectCreate(&raw mut made.surface, resource))?;
        }
        Ok(made)
    }
}

impl Drop for LayeredTexture {
    fn drop(&mut self) {
        // A failure cannot be handled here.
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: each was made in `new` and is destroyed once, the array after the objects that refer to it.
        // Destroying an array waits for the kernels that use it, as freeing memory does.
        unsafe {
            if self.surface != 0 {
                let _ = driver!(cuSurfObjectDestroy(self.surface));
            }
            if self.texture != 0 {
                let _ = driver!(cuTexObjectDestroy(self.texture));
            }
            if !self.array.is_null() {
                let _ = driver!(cuArrayDestroy(self.array));
            }
        }
    }
}
