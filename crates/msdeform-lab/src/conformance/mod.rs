//! The named cases that every variant of every backend computes, and the comparison they are held to.
//!
//! A [`Shape`] is what a kernel may be compiled for; it is synthetic. A [`Scene`] is what changes from call to call. Backends that take
//! their time over nothing run all [`settings`] in every format and layout; the emulator, where compiling and running
//! are expensive, covers the same shapes and scenes in turns. A case is added as one line of `shapes.rs` or `scenes.rs`.

mod scenes;
mod shapes;

pub use scenes::Scene;
pub use shapes::{SHAPES, Shape};

use msdeform::{DType, Direction, Error, Gradients, Problem, ValueLayout, VariantSpec};

use crate::HostTensors;
use crate::case::Case;
use crate::device::{DeviceError, Result};
use crate::oracle::{Expected, expect};
use crate::runner::{self, Runner};

/// Dtypes of values, and of locations and weights: one for both, or `f32` with half values, as automatic mixed precision
/// leaves them.
pub const FORMATS: [(DType, DType); 5] = [
    (DType::F32, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
];

/// The backends, by how much they can afford.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// A lane is a fiber, or every instruction is watched: only what is small.
    Emulator,
    /// Also what needs many queries, pixels or channels to go wrong.
    Gpu,
    /// Also the widths of vector registers.
    Cpu,
}

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub shape: &'static Shape,
    pub scene: &'static Scene,
}

/// The scenes of a direction, the ordinary one first.
pub fn scenes(backend: Backend, direction: Direction) -> impl Iterator<Item = &'static Scene> {
    let only_backward = match direction {
        Direction::Forward => &[][..],
        Direction::Backward => scenes::BACKWARD,
    };
    let all = scenes::ALL.iter().chain(only_backward);
    all.filter(move |scene| scene.least <= backend)
}

/// Every scene on the shape that it is shown on, and every shape in the largest of the scenes that are for all.
pub fn settings(backend: Backend, direction: Direction) -> Vec<Setting> {
    let largest = scenes(backend, direction).filter(|scene| scene.for_all_shapes).last();
    let mut settings = Vec::new();
    for scene in scenes(backend, direction) {
        let is_largest = largest.is_some_and(|largest| largest.name == scene.name);
        let shapes = SHAPES.iter().filter(|shape| shape.least <= backend);
        let suits = |shape: &&Shape| is_largest || shape.name == scene.shape;
        settings.extend(shapes.filter(suits).map(|shape| Setting { shape, scene }));
    }
    settings
}

impl Setting {
    /// Shape and scene, as part of the name of a test.
    pub fn name(&self) -> String {
        format!("{}::{}", self.shape.name, self.scene.name).replace([' ', '-'], "_")
    }

    /// The problem, in a format and layout.
    pub fn problem(
        &self,
        (dtype, sampling): (DType, DType),
        layout: ValueLayout,
    ) -> Result<Problem, Error> {
        let Self { shape, scene } = self;
        let levels = shape.points.len();
        let mut builder = Problem::builder()
            .batch(scene.batch)
            .heads(shape.heads)
            .channels(shape.channels)
            .queries(scene.queries)
            .levels((0..levels).map(|l| scene.sizes[l % scene.sizes.len()]))
            .points_per_level(shape.points)
            .layout(layout)
            .dtype(dtype)
            .sampling_dtype(sampling);
        if let Some(rule) = shape.rule {
            builder = builder.offsets(rule).reference_dtype(DType::F32);
        }
        if !scene.gaps {
            return builder.build();
        }
        // The last level first, and unused pixels between them.
        let packed = builder.clone().build()?;
        let mut starts = vec![0i64; levels];
        let mut next = 3;
        for (l, level) in packed.levels().iter().enumerate().rev() {
            starts[l] = next;
            next += level.footprint(layout) as i64 + 2;
        }
        builder.level_starts(starts).spatial(next as usize).build()
    }

    /// The case: its output, or all gradients, by the backend's own choice.
    pub fn case(
        &self,
        direction: Direction,
        formats: (DType, DType),
        layout: ValueLayout,
    ) -> Result<Case, Error> {
        let problem = self.problem(formats, layout)?;
        let is_backward = direction == Direction::Backward;
        let wants = is_backward.then(|| Gradients::all_of(&problem));
        Ok(self.scene.case(problem, wants))
    }
}

/// Runs a case and compares it with the reference: the plain relative error within the bound of a format, with none of
/// the allowances that random numbers need.
pub fn check(runner: &dyn Runner, case: &Case, bound: &dyn Fn(DType) -> f64) -> Result<()> {
    let inputs = case.inputs();
    compare(runner, case, &inputs, &expect(case, &inputs), bound)
}

/// The same by several variants, which share what the reference takes its time over: the errors, by variant.
pub fn check_variants<'a>(
    runner: &dyn Runner,
    case: &Case,
    variants: &[&'a VariantSpec],
) -> Vec<(&'a str, DeviceError)> {
    let inputs = case.inputs();
    let expected = expect(case, &inputs);
    let error_of = |variant: &&'a VariantSpec| {
        let case = case.clone().by(variant.id, Vec::new());
        let bound = |dtype| variant.rel_l2_bound(dtype);
        Some((variant.id, compare(runner, &case, &inputs, &expected, &bound).err()?))
    };
    variants.iter().filter_map(error_of).collect()
}

fn compare(
    runner: &dyn Runner,
    case: &Case,
    inputs: &HostTensors,
    expected: &[Expected],
    bound: &dyn Fn(DType) -> f64,
) -> Result<()> {
    let found = runner::compute(runner, case, inputs)?;
    let verdicts = runner::compare(expected, &found, bound);
    match verdicts.into_iter().find_map(|(_, verdict)| verdict.fault) {
        Some(reason) => Err(DeviceError::Failed { reason }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A scene whose shape has another name would run nowhere.
    #[test]
    fn every_shape_and_scene_is_run_once_and_has_a_name_of_its_own() {
        for direction in Direction::ALL {
            let all = settings(Backend::Cpu, direction);
            let names: BTreeSet<String> = all.iter().map(Setting::name).collect();
            assert_eq!(names.len(), all.len());
            for scene in scenes(Backend::Cpu, direction) {
                assert!(all.iter().any(|setting| setting.scene.name == scene.name), "{scene:?}");
            }
            for shape in SHAPES {
                assert!(all.iter().any(|setting| setting.shape.name == shape.name), "{shape:?}");
            }
        }
    }

    #[test]
    fn who_affords_more_runs_all_that_others_do() {
        let names = |backend| -> BTreeSet<&str> {
            scenes(backend, Direction::Backward).map(|scene| scene.name).collect()
        };
        assert!(names(Backend::Emulator).is_subset(&names(Backend::Gpu)));
        assert!(names(Backend::Gpu).is_subset(&names(Backend::Cpu)));
    }
}
