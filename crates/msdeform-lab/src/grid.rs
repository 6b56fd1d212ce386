//! Which cases and variants a command looks at.

use msdeform::{DType, Direction, Operator, ValueLayout, VariantSpec};

use crate::device::named::{id_in, named};
use crate::device::{Device, DeviceError};
use crate::workload::{Sizes, Workload};
use crate::{Locations, WorkloadCase};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breadth {
    /// Only the first of each list: the usual layout, the most telling locations.
    First,
    All,
}

#[derive(Clone, Debug)]
pub struct Selection {
    pub workloads: Vec<Workload>,
    /// Kinds of locations; empty for what the workload lists.
    pub locations: Vec<Locations>,
    /// Layouts; empty for what the workload lists.
    pub layouts: Vec<ValueLayout>,
    /// What empty lists mean.
    pub breadth: Breadth,
    pub dtypes: Vec<DType>,
    pub directions: Vec<Direction>,
    /// Ids of variants, with knobs as `id:NAME=VALUE` where wanted; empty for all of the device.
    pub variants: Vec<String>,
    /// Whether all of them includes the rungs of the ladder.
    pub rungs: bool,
    pub operator: &'static Operator,
    pub sizes: Sizes,
    pub seed: u64,
}

impl Selection {
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
