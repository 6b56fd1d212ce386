//! What runs the operator in the laboratory and in `msdeform.bench`: workloads, seeded inputs, the devices that run
//! variants on them, and the comparison of what comes out.
//!
//! It knows the variants of a GPU only as the list that a caller passes: the laboratory has more than the product.

mod aligned;
mod buffer;
pub mod case;
pub mod compare;
pub mod device;
mod generate;
pub mod memory;
pub mod number;
pub mod work;
pub mod workload;

pub use aligned::Aligned;
pub use buffer::Buffer;
pub use case::Case;
pub use device::{Ceiling, Device, DeviceError, DeviceId};
pub use generate::{Draw, HostTensors, STANDARD_SEED, Widened};
pub use memory::MemoryError;
pub use work::{Throughput, Work};
pub use workload::{Locations, Workload, WorkloadError};
