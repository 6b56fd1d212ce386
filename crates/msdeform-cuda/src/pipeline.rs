//! What a configuration does on the stream: kernels and zeroing, one after the other.
//!
//! A forward variant is one kernel. A backward variant may be several: what one step leaves in the
//! workspace, the next one reads. All steps get the same parameter.

use msdeform::Role;

use crate::driver::LaunchGeometry;

/// Bytes that a workspace's address and the offsets of its parts are multiples of: what allocators
/// give anyway, and more than any access needs.
pub const WORKSPACE_ALIGNMENT: usize = 256;

/// One entry of a queue of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Launches a kernel of the variant's file.
    Launch {
        /// The entry is called `<id>_<name>`; the one without a name is called `<id>`.
        name: &'static str,
        /// Grid, block and shared memory.
        geometry: LaunchGeometry,
    },
    /// Sets bytes to zero.
    Zero(Region),
}

/// Memory that a step may zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// All of a tensor that the call writes.
    Tensor(Role),
    /// A part of the workspace.
    Workspace {
        /// Where it starts.
        offset: usize,
        /// Its size.
        bytes: usize,
    },
}

/// Steps in order, and the memory they share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pipeline {
    /// What is queued, first to last.
    pub steps: Vec<Step>,
    /// How many leading steps leave something that a later launch on the same inputs could use again
    /// (quantised values, an order of the queries). 0 for most.
    pub preparation: usize,
    /// Size of the workspace. Bounded by what the call's tensors take, never by what they hold.
    pub workspace_bytes: usize,
}

impl From<LaunchGeometry> for Pipeline {
    /// One kernel, named like the variant.
    fn from(geometry: LaunchGeometry) -> Self {
        let only = Step::Launch { name: "", geometry };
        Self { steps: vec![only], ..Self::default() }
    }
}

impl Pipeline {
    /// Every launch with the name of its step.
    pub fn launches(&self) -> impl Iterator<Item = (&'static str, LaunchGeometry)> + '_ {
        self.steps.iter().filter_map(|step| match *step {
            Step::Launch { name, geometry } => Some((name, geometry)),
            Step::Zero(_) => None,
        })
    }

    /// Adds a kernel.
    pub fn launch(&mut self, name: &'static str, geometry: LaunchGeometry) {
        self.steps.push(Step::Launch { name, geometry });
    }

    /// Adds zeroing.
    pub fn zero(&mut self, region: Region) {
        self.steps.push(Step::Zero(region));
    }

    /// Lets every launch that was added start before the one before it is done. Their kernels wait for it.
    pub(crate) fn overlap_launches(&mut self) {
        for step in &mut self.steps {
            if let Step::Launch { geometry, .. } = step {
                geometry.overlaps = true;
            }
        }
    }

    /// Declares what was added so far to be preparation.
    pub fn prepared(&mut self) {
        self.preparation = self.steps.len();
    }

    /// Takes the next part of the workspace; returns where it starts.
    pub fn reserve(&mut self, bytes: usize) -> usize {
        let offset = self.workspace_bytes;
        self.workspace_bytes += bytes.next_multiple_of(WORKSPACE_ALIGNMENT);
        offset
    }
}

/// The entry kernel of a step.
pub fn entry_name(id: &str, step: &str) -> String {
    if step.is_empty() { id.to_owned() } else { format!("{id}_{step}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_workspace_follow_each_other_aligned() {
        let mut pipeline = Pipeline::default();
        assert_eq!(
            (pipeline.reserve(1), pipeline.reserve(256), pipeline.reserve(0)),
            (0, 256, 512)
        );
        assert_eq!(pipeline.workspace_bytes, 512);
    }

    #[test]
    fn preparation_is_what_was_added_before_it_was_declared() {
        let mut pipeline = Pipeline::default();
        pipeline.zero(Region::Workspace { offset: 0, bytes: 4 });
        pipeline.launch("count", LaunchGeometry::linear(1, 32));
        pipeline.prepared();
        pipeline.launch("", LaunchGeometry::linear(1, 32));
        assert_eq!((pipeline.preparation, pipeline.steps.len()), (2, 3));
    }

    #[test]
    fn one_kernel_is_a_pipeline_named_like_its_variant() {
        let geometry = LaunchGeometry::linear(3, 64);
        let pipeline = Pipeline::from(geometry);
        assert_eq!(pipeline.launches().collect::<Vec<_>>(), [("", geometry)]);
        assert_eq!(entry_name("fwd_general", ""), "fwd_general");
        assert_eq!(entry_name("bwd_general", "samples"), "bwd_general_samples");
    }
}
