//! What runs the operator, and what decides whether a result is right. Tests, fuzzers and the laboratory share it.
//!
//! - [`workload`]: the shapes that people use. [`device`]: what runs and times variants on their inputs.
//! - [`case`]: a call with everything that decides about its result. [`runner`]: backends that compute cases in memory whose
//!   surroundings are checked. [`conformance`]: the named cases of every backend. [`soak`]: random ones.
//! - [`oracle`]: the accuracy contract, for both.
//!
//! The crate knows the variants of a GPU only as the list that a caller passes: the laboratory has more than the product.
//!
//! ```
//! use msdeform_devices::runner::{CpuRunner, Runner, check};
//! use msdeform_devices::soak::{Bounds, Generator};
//!
//! let runner = CpuRunner;
//! let generator = Generator::new(runner.rules(), Bounds { strided: false, ..Bounds::default() }, 1);
//! for case in generator.cases(0, 3) {
//!     let checked = check(&runner, &case).unwrap();
//!     assert_eq!(checked.fault(), None, "{case}");
//! }
//! ```

#![allow(
    missing_docs,
    reason = "a comment here gives a reason, an invariant or a unit; names tell the rest"
)]

mod buffer;
pub mod case;
pub mod conformance;
pub mod device;
mod generate;
pub mod memory;
mod names;
pub mod number;
pub mod oracle;
mod random;
pub mod runner;
pub mod soak;
mod tensors;
pub mod work;
pub mod workload;

pub use buffer::Buffer;
pub use case::{Case, Numbers};
pub use device::{Ceiling, Device, DeviceError, DeviceId};
pub use generate::{Draw, STANDARD_SEED};
pub use memory::MemoryError;
pub use random::Random;
pub use tensors::{HostTensors, Widened};
pub use work::{Throughput, Work};
pub use workload::{Locations, Workload, WorkloadCase, WorkloadError};
