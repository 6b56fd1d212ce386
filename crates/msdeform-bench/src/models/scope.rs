//! How models call the operator.

use msdeform::{BackwardCall, DType, Direction, Gradients, Mode, Offsets, Problem, ReferenceOf};

use super::{is_of_encoder, is_thin};

/// What is asked for where values come from something frozen.
const WITHOUT_VALUE: Gradients = Gradients { value: false, ..Gradients::ALL };
/// What is asked for where references are learned.
pub(crate) const WITH_REFERENCES: Gradients = Gradients { references: true, ..Gradients::ALL };

/// Which calls of a model are meant.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Formats of the values.
    pub dtypes: Vec<DType>,
    /// Which way.
    pub directions: Vec<Direction>,
    /// What gradients promise.
    pub modes: Vec<Mode>,
    /// Which gradients are asked for at once.
    pub gradients: Vec<Gradients>,
    /// Whether those are meant too that hardly anybody makes; see `is_usual`.
    pub rare: bool,
}

impl Default for Scope {
    /// All that are usual.
    fn default() -> Self {
        Self {
            dtypes: DType::FAST.to_vec(),
            directions: Direction::ALL.to_vec(),
            modes: Mode::ALL.to_vec(),
            gradients: vec![Gradients::ALL, WITHOUT_VALUE, WITH_REFERENCES],
            rare: false,
        }
    }
}

impl Scope {
    /// Everything that the dispatcher may be asked for.
    pub(super) fn everything() -> Self {
        Self { rare: true, ..Self::default() }
    }

    /// How a problem is called.
    pub(super) fn calls(&self, problem: &Problem) -> Vec<Option<BackwardCall>> {
        let mut calls = Vec::new();
        for direction in &self.directions {
            if *direction == Direction::Forward {
                calls.push(None);
                continue;
            }
            let all = BackwardCall::new(problem);
            let both = |&mode| {
                self.gradients.iter().map(move |&gradients| BackwardCall { gradients, mode, ..all })
            };
            let asked = self.modes.iter().flat_map(both).filter(|call| {
                let exists = !call.gradients.references || problem.offsets().is_some();
                exists && (self.rare || is_usual(problem, *call))
            });
            calls.extend(asked.map(Some));
        }
        calls
    }
}

/// Whether gradients are asked for as people do: all of them; with the same bits every time, which none ask for with mixed
/// precision; without that of the values, where what they come from is frozen, in the formats that training has. The last two
/// not for thin images: they concern other steps than those do. Nor the gradients of references, which decoders alone train;
/// anchors are laid out once and for all.
fn is_usual(problem: &Problem, BackwardCall { gradients, mode, .. }: BackwardCall) -> bool {
    if (gradients, mode) == (Gradients::ALL, Mode::Fast) {
        return true;
    }
    let is_mixed = match problem.offsets() {
        None => problem.dtype() != problem.sampling_dtype(),
        Some(_) => problem.dtype() != problem.reference_dtype(),
    };
    let trains = |rule: &Offsets| !matches!(rule.reference_of(), ReferenceOf::Anchor(_));
    !is_thin(problem)
        && match (gradients, mode) {
            (Gradients::ALL, Mode::Deterministic) => !is_mixed,
            (WITHOUT_VALUE, Mode::Fast) => is_mixed || problem.dtype() == DType::F32,
            (WITH_REFERENCES, Mode::Fast) => {
                problem.offsets().is_some_and(trains) && !is_of_encoder(problem)
            }
            _ => false,
        }
}
