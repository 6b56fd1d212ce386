//! How models call the operator.

use msdeform::{BackwardCall, DType, Direction, Gradients, Mode, Offsets, Problem, ReferenceOf};

use super::{is_of_encoder, is_thin};

/// Gradients if a frozen backbone makes the values.
const WITHOUT_VALUE: Gradients = Gradients { value: false, ..Gradients::ALL };
/// Gradients if references are learned.
pub(crate) const WITH_REFERENCES: Gradients = Gradients { references: true, ..Gradients::ALL };

#[derive(Clone, Debug)]
pub struct Scope {
    pub dtypes: Vec<DType>,
    pub directions: Vec<Direction>,
    pub modes: Vec<Mode>,
    pub gradients: Vec<Gradients>,
    /// Whether rare calls are included; see `is_usual`.
    pub rare: bool,
}

impl Default for Scope {
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
    /// Every call that dispatch accepts.
    pub(super) fn everything() -> Self {
        Self { rare: true, ..Self::default() }
    }

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
            let wanted = self.modes.iter().flat_map(both).filter(|call| {
                let exists = !call.gradients.references || problem.offsets().is_some();
                exists && (self.rare || is_usual(problem, *call))
            });
            calls.extend(wanted.map(Some));
        }
        calls
    }
}

/// Whether models ask for these gradients:
/// - all of them;
/// - all of them, bitwise reproducible, without mixed precision;
/// - all but that of the values, in the dtypes of training, because a frozen backbone makes the values;
/// - with those of the references in decoders, which alone train them. Anchors are constants.
///
/// Thin images count for the first only: the others concern steps that thin images do not change.
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
