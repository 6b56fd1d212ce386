//! Which cases and variants a command looks at.

use msdeform::{DType, Direction, Operator, ValueLayout, VariantSpec};

use msdeform_devices::device::named::{id_in, named};
use msdeform_devices::device::{Device, DeviceError};
use msdeform_devices::workload::{Sizes, Workload};
use msdeform_devices::{Locations, WorkloadCase};

/// How much of a workload's lists is taken by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breadth {
    /// Only the first of each list: the usual layout, the most telling locations.
    First,
    /// Everything listed.
    All,
}

/// A part of the grid of workloads, locations, layouts, formats and variants.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Shapes.
    pub workloads: Vec<Workload>,
    /// Kinds of locations; empty for what the workload lists.
    pub locations: Vec<Locations>,
    /// Layouts; empty for what the workload lists.
    pub layouts: Vec<ValueLayout>,
    /// What empty lists mean.
    pub breadth: Breadth,
    /// Formats.
    pub dtypes: Vec<DType>,
    /// Directions.
    pub directions: Vec<Direction>,
    /// Ids of variants, with knobs as `id:NAME=VALUE` where wanted; empty for all of the device.
    pub variants: Vec<String>,
    /// Whether all of them includes the rungs of the ladder.
    pub rungs: bool,
    /// What is computed.
    pub operator: &'static Operator,
    /// Other sizes than the workload's.
    pub sizes: Sizes,
    /// Seed of the inputs.
    pub seed: u64,
}

impl Selection {
    /// Every case, in table order.
    #[must_use]
    pub fn cases(&self) -> Vec<WorkloadCase<'_>> {
        fn choose<'a, T>(wanted: &'a [T], listed: &'a [T], breadth: Breadth) -> &'a [T] {
            match (wanted.is_empty(), breadth) {
                (false, _) => wanted,
                (true, Breadth::All) => listed,
                (true, Breadth::First) => &listed[..listed.len().min(1)],
            }
        }
        let mut cases = Vec::new();
        for workload in &self.workloads {
            for &locations in choose(&self.locations, &workload.locations, self.breadth) {
                for &layout in choose(&self.layouts, &workload.layouts, self.breadth) {
                    for &dtype in &self.dtypes {
                        let (operator, sizes, seed) = (self.operator, self.sizes, self.seed);
                        cases.push(WorkloadCase {
                            workload,
                            locations,
                            layout,
                            dtype,
                            operator,
                            sizes,
                            seed,
                        });
                    }
                }
            }
        }
        cases
    }

    /// The chosen variants of a device, in the order of its registry.
    ///
    /// # Errors
    /// [`DeviceError::UnknownVariant`] naming what the device has.
    pub fn variants_of(
        &self,
        device: &dyn Device,
    ) -> Result<Vec<&'static VariantSpec>, DeviceError> {
        let registered = device.variants();
        let is_unknown = |name: &&String| registered.iter().all(|spec| spec.id != id_in(name));
        if let Some(unknown) = self.variants.iter().find(is_unknown) {
            return Err(DeviceError::UnknownVariant {
                device: device.id(),
                variant: unknown.clone(),
                known: registered.iter().map(|spec| spec.id).collect(),
            });
        }
        let mut chosen = Vec::new();
        for spec in registered.into_iter().filter(|spec| self.directions.contains(&spec.direction))
        {
            if self.variants.is_empty() && (self.rungs || !spec.rung) {
                chosen.push(spec);
            }
            for name in self.variants.iter().filter(|name| id_in(name) == spec.id) {
                chosen.push(if name == spec.id { spec } else { named(spec, name) });
            }
        }
        Ok(chosen)
    }
}
