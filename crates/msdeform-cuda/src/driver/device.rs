//! What a GPU is and has.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};

use super::{driver, driver_version};
use crate::error::{CudaVersion, Result};

/// The oldest driver that keeps the overlap of launches when it captures them.
const OVERLAPS_IN_GRAPHS: CudaVersion = CudaVersion { major: 12, minor: 3 };

/// What GPUs of one architecture have in common: its number, KiB of shared memory that a block may ask for, threads of a
/// multiprocessor, and the numbers of multiprocessors they are sold with.
struct Architecture(u32, usize, u32, &'static [u32]);

/// From NVIDIA's tables of compute capabilities and data sheets; a usual GPU first.
const ARCHITECTURES: &[Architecture] = &[
    Architecture(80, 163, 2048, &[108, 56]),
    Architecture(86, 99, 1536, &[82, 84, 72, 68, 46, 28]),
    Architecture(87, 163, 1536, &[16, 8]),
    Architecture(89, 99, 1536, &[128, 142, 76, 58, 46, 24]),
    Architecture(90, 227, 2048, &[132, 114, 78]),
    Architecture(100, 227, 2048, &[148]),
    Architecture(103, 227, 2048, &[148]),
    Architecture(120, 99, 1536, &[170, 188, 84, 70, 48, 36]),
    Architecture(121, 99, 1536, &[48]),
];

impl Architecture {
    fn gpus(&self) -> impl Iterator<Item = DeviceProps> {
        let Self(number, shared_kib_per_block, threads_per_multiprocessor, sold) = *self;
        sold.iter().map(move |&multiprocessors| DeviceProps {
            name: format!("a GPU of sm_{number} with {multiprocessors} multiprocessors"),
            compute_capability: (number / 10, number % 10),
            overlaps_launches: number >= 90,
            multiprocessors,
            shared_bytes_per_block: shared_kib_per_block << 10,
            shared_bytes_per_multiprocessor: (shared_kib_per_block + 1) << 10,
            threads_per_multiprocessor,
            // The rest concerns no kernel's code.
            ..DeviceProps::h200()
        })
    }
}

/// What variants, the dispatcher and records need to know of a GPU. Plain data: launch geometry can
/// be worked out, and tested, for a GPU that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProps {
    /// The device's number in this process.
    pub ordinal: usize,
    /// What the maker calls it.
    pub name: String,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
    /// Whether a launch may start while the one before it still runs, in a captured graph too.
    pub overlaps_launches: bool,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of L2.
    pub l2_bytes: usize,
    /// Bytes of shared memory a block may ask for.
    pub shared_bytes_per_block: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_bytes_per_multiprocessor: usize,
    /// Threads resident on a multiprocessor.
    pub threads_per_multiprocessor: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Bytes of device memory.
    pub memory_bytes: usize,
    /// Highest clock of the multiprocessors.
    pub clock_khz: u32,
    /// Highest clock of the memory.
    pub memory_clock_khz: u32,
    /// Width of the memory bus.
    pub memory_bus_bits: u32,
}

impl DeviceProps {
    /// An H200, for working out launches without one.
    #[must_use]
    pub fn h200() -> Self {
        Self {
            ordinal: 0,
            name: "NVIDIA H200".to_owned(),
            compute_capability: (9, 0),
            overlaps_launches: true,
            multiprocessors: 132,
            l2_bytes: 50 << 20,
            shared_bytes_per_block: 227 << 10,
            shared_bytes_per_multiprocessor: 228 << 10,
            threads_per_multiprocessor: 2048,
            registers_per_multiprocessor: 65_536,
            memory_bytes: 139 << 30,
            clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6144,
        }
    }

    /// GPUs of an architecture (`sm_90`, `sm_90a`), for working out what is compiled for it without having one: one for
    /// every number of multiprocessors, the usual one first. None for an architecture that nothing is known about.
    #[must_use]
    pub fn of_architecture(arch: &str) -> Vec<Self> {
        let digits = arch.strip_prefix("sm_").map(|rest| rest.strip_suffix('a').unwrap_or(rest));
        let number: Option<u32> = digits.and_then(|digits| digits.parse().ok());
        let known = ARCHITECTURES.iter().filter(|known| number == Some(known.0));
        known.flat_map(Architecture::gpus).collect()
    }

    /// The architectures of [`DeviceProps::of_architecture`], as people write them.
    pub fn architectures() -> impl Iterator<Item = String> {
        ARCHITECTURES.iter().map(|known| format!("sm_{}", known.0))
    }

    /// The name NVRTC and cubins use: `sm_90a`. Since Hopper the instructions of one architecture
    /// (TMA, wgmma) are only in its `a` set.
    #[must_use]
    pub fn arch(&self) -> String {
        let (major, minor) = self.compute_capability;
        let suffix = if major >= 9 { "a" } else { "" };
        format!("sm_{major}{minor}{suffix}")
    }

    /// Asks the driver about a device.
    pub(super) fn query(device: sys::CUdevice, ordinal: usize) -> Result<Self> {
        let attribute = |attribute: Attribute| -> Result<u32> {
            let mut value = 0;
            // SAFETY: `device` comes from cuDeviceGet, `value` is writable.
            unsafe { driver!(cuDeviceGetAttribute(&raw mut value, attribute, device)) }?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let mut name = [0; 256];
        // SAFETY: the length given is the buffer's; the driver ends the name with a zero.
        unsafe { driver!(cuDeviceGetName(name.as_mut_ptr(), 256, device)) }?;
        // SAFETY: ended with a zero within the buffer, see above.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut memory_bytes = 0;
        // SAFETY: `device` comes from cuDeviceGet, `memory_bytes` is writable.
        unsafe { driver!(cuDeviceTotalMem_v2(&raw mut memory_bytes, device)) }?;
        use Attribute::*;
        let compute_capability = (
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        Ok(Self {
            ordinal,
            name,
            compute_capability,
            overlaps_launches: compute_capability >= (9, 0)
                && driver_version()? >= OVERLAPS_IN_GRAPHS,
            multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            l2_bytes: attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
            shared_bytes_per_block: attribute(
                CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )? as usize,
            shared_bytes_per_multiprocessor: attribute(
                CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            )? as usize,
            threads_per_multiprocessor: attribute(
                CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
            )?,
            registers_per_multiprocessor: attribute(
                CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
            )?,
            memory_bytes,
            clock_khz: attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_clock_khz: attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            memory_bus_bits: attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_named_as_nvrtc_names_them() {
        let arch = |major, minor| {
            DeviceProps { compute_capability: (major, minor), ..DeviceProps::h200() }.arch()
        };
        assert_eq!(arch(8, 0), "sm_80");
        assert_eq!(arch(8, 9), "sm_89");
        assert_eq!(arch(9, 0), "sm_90a");
        assert_eq!(arch(12, 0), "sm_120a");
    }

    #[test]
    fn gpus_of_an_architecture_are_of_it_and_a_stranger_has_none() {
        for name in DeviceProps::architectures() {
            let gpus = DeviceProps::of_architecture(&name);
            assert!(!gpus.is_empty());
            assert!(gpus.iter().all(|gpu| gpu.arch().trim_end_matches('a') == name), "{gpus:?}");
        }
        assert_eq!(DeviceProps::of_architecture("sm_90a"), DeviceProps::of_architecture("sm_90"));
        let usual = &DeviceProps::of_architecture("sm_90")[0];
        let h200 = DeviceProps { name: usual.name.clone(), ..DeviceProps::h200() };
        assert_eq!(*usual, h200);
        for strange in ["sm_70", "90", "sm_", "sm_90aa", "sm_-90", ""] {
            assert!(DeviceProps::of_architecture(strange).is_empty(), "{strange}");
        }
    }
}
