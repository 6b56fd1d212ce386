//! The named cases that every variant of every backend computes, and the comparison they are held to.
//!
//! A [`Model`] is what a kernel may be compiled for, a [`Scene`] what changes from call to call. Backends that take
//! their time over nothing run all [`settings`] in every format and layout; the emulator, where compiling and running
//! are dear, covers the same models and scenes in turns. A case is added as one line of `models.rs` or `scenes.rs`.

mod models;
mod scenes;

pub use models::{MODELS, Model};
pub use scenes::{Alignment, Scene};

use msdeform::{DType, Direction, Error, Problem, ValueLayout, VariantSpec};
use msdeform_cuda::Gradients;

use crate::case::{Case, Choice, Wants};
use crate::oracle::{Verdict, expect};
use crate::runner::{Fault, Worker};
use crate::tensors::Inputs;

/// Formats of values, and of locations and weights.
pub const FORMATS: [(DType, DType); 5] = [
    (DType::F32, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
];

/// Who can afford a model or a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// A lane is a fiber, or every instruction is watched: only what is small.
    Emulator,
    /// Also what needs many queries, pixels or channels to go wrong.
    Gpu,
    /// Also the widths of vector registers.
    Cpu,
}

/// A model in a scene.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// What a kernel may be compiled for.
    pub model: &'static Model,
    /// What changes from call to call.
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

/// Every model in the scenes that sizes matter to, and every scene with a model that suits it.
#[must_use]
pub fn settings(backend: Backend, direction: Direction) -> Vec<Setting> {
    let mut settings = Vec::new();
    for scene in scenes(backend, direction) {
        let models = MODELS.iter().filter(|model| model.least <= backend);
        let suits = |model: &&Model| scene.in_every_model || model.name == scene.model;
        settings.extend(models.filter(suits).map(|model| Setting { model, scene }));
    }
    settings
}

impl Setting {
    /// Model and scene, as part of the name of a test.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}::{}", self.model.name, self.scene.name).replace([' ', '-'], "_")
    }

    /// The problem, in a format and layout.
    ///
    /// # Errors
    /// What is wrong with its sizes.
    pub fn problem(
        &self,
        (dtype, sampling): (DType, DType),
        layout: ValueLayout,
    ) -> Result<Problem, Error> {
        let Self { model, scene } = self;
        let levels = model.points.len();
        let builder = Problem::builder()
            .batch(scene.batch)
            .heads(model.heads)
            .channels(model.channels)
            .queries(scene.queries)
            .levels((0..levels).map(|l| scene.sizes[l % scene.sizes.len()]))
            .points_per_level(model.points)
            .layout(layout)
            .dtype(dtype)
            .sampling_dtype(sampling);
        if !scene.gaps {
            return builder.build();
        }
        // The last level first, and pixels between them that belong to nobody.
        let packed = builder.clone().build()?;
        let mut starts = vec![0i64; levels];
        let mut next = 3;
        for (l, level) in packed.levels().iter().enumerate().rev() {
            starts[l] = next;
            next += level.footprint(layout) as i64 + 2;
        }
        builder.level_starts(starts).spatial(next as usize).build()
    }

    /// The case of a variant: its output, or all gradients.
    ///
    /// # Errors
    /// What is wrong with its sizes.
    pub fn case(
        &self,
        variant: &VariantSpec,
        formats: (DType, DType),
        layout: ValueLayout,
    ) -> Result<Case, Error> {
        let wants = match variant.direction {
            Direction::Forward => Wants::Output,
            Direction::Backward => Wants::Gradients(Gradients::ALL),
        };
        let problem = self.problem(formats, layout)?;
        let choice = Choice::Named { variant: variant.id.to_owned(), knobs: Vec::new() };
        Ok(Case { choice, ..self.scene.case(problem, wants) })
    }
}

/// Runs a case and compares it with the reference: the plain relative error within the bound of a format, with none of
/// the allowances that random numbers need.
///
/// # Errors
/// A refusal, what kept it from being compared, or what is wrong.
pub fn check(
    worker: &mut dyn Worker,
    case: &Case,
    bound: &dyn Fn(DType) -> f64,
) -> Result<Vec<Verdict>, Fault> {
    let inputs = Inputs::new(case);
    let written = worker.run(case, &inputs, &mut |_| ())?.written;
    let expected = expect(case, &inputs).into_iter().zip(&written);
    let compare = |(expected, bytes): (crate::Expected, &Vec<u8>)| {
        let verdict = expected.strict().compare(bytes, bound(expected.dtype));
        match &verdict.fault {
            Some(fault) => Err(Fault::Failed(fault.clone())),
            None => Ok(verdict),
        }
    };
    expected.map(compare).collect()
}
