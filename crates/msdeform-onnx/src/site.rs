//! A place of a model where the attention is computed, in any form.

use crate::dim::{Dim, Sizes};
use crate::form::Form;

/// A level of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) start: usize,
}

/// Where the levels' sizes and starts are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Levels {
    Known(Vec<Level>),
    /// Tensors of the graph, whose numbers are not known.
    Tensors {
        shapes: String,
        starts: String,
    },
    /// A tensor of the graph for each level, whose last two numbers are the height and the width. There are no gaps between levels.
    Computed(Vec<String>),
}

/// What brings a tensor of the model into the form that the operators take.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Adaptation {
    Reshape(Vec<i64>),
    Transpose(Vec<i64>),
    /// `x * factor + shift`.
    Scale {
        factor: f64,
        shift: f64,
    },
}

/// A tensor of the model, and the steps from it to the operator.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operand {
    pub(crate) tensor: String,
    pub(crate) steps: Vec<Adaptation>,
    /// The rank that it then has.
    pub(crate) rank: usize,
}

/// The result of running a site and the reference on the same inputs.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// The largest difference on random inputs.
    pub(crate) max_error: f64,
    /// The numbers that open sizes had.
    pub(crate) sizes: Sizes,
    /// The levels in the run.
    pub(crate) levels: Vec<Level>,
}

/// A place where the attention is computed.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) form: Form,
    /// How the form is written: the operator, or a word on the standard operators.
    pub(crate) spelling: String,
    /// The node that makes the output; the new ones take its place.
    pub(crate) anchor: usize,
    pub(crate) name: String,
    pub(crate) nodes: Vec<String>,
    /// `[N, S, M, D]` after its steps.
    pub(crate) value: Operand,
    /// Locations and weights; `None` if `MSDeformAttnFromOffsets` makes them of references, offsets and logits.
    pub(crate) samples: Option<[Operand; 2]>,
    pub(crate) levels: Levels,
    /// Points of each level.
    pub(crate) points: Option<Vec<usize>>,
    pub(crate) batch: Option<Dim>,
    pub(crate) queries: Option<Dim>,
    pub(crate) heads: Option<usize>,
    pub(crate) channels: Option<usize>,
    pub(crate) output: String,
    /// Whether the output has heads and channels apart.
    pub(crate) is_output_split: bool,
    /// Whether the output is `[N, M * D, Lq]`: an optimiser has drawn the transposition into what follows.
    pub(crate) is_output_transposed: bool,
    /// What running it has shown, where it consists of standard operators.
    pub(crate) evidence: Option<Evidence>,
}

impl Site {
    /// Whether another site means the same; evidence is not compared.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        let known =
            |site: &Self| (site.points.clone(), site.levels.clone(), site.heads, site.channels);
        self.value == other.value
            && self.samples == other.samples
            && self.output == other.output
            && self.is_output_split == other.is_output_split
            && self.is_output_transposed == other.is_output_transposed
            && known(self) == known(other)
    }

    /// Points of each level, if all have the same.
    pub(crate) fn uniform_points(&self) -> Option<usize> {
        let points = self.points.as_ref()?;
        let first = *points.first()?;
        points.iter().all(|&count| count == first).then_some(first)
    }

    pub(crate) fn total_points(&self) -> Option<usize> {
        self.points.as_ref()?.iter().try_fold(0usize, |sum, &count| sum.checked_add(count))
    }
}
