//! What a backward call computes.

use std::fmt;

use crate::{Mode, OutputStrides, Problem, Role};

/// A subset of the gradients: those that a backward call computes and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gradients {
    /// Of the values.
    pub value: bool,
    /// Of the sampling locations.
    pub locations: bool,
    /// Of the attention weights.
    pub weights: bool,
    /// Of the references. Only the fused operator has them; its offsets count as locations, its logits as weights.
    pub references: bool,
}

impl Gradients {
    /// The three that every operator has.
    pub const ALL: Self = Self { value: true, locations: true, weights: true, references: false };

    /// No gradient.
    pub const NONE: Self = Self::from_mask(0);

    /// Every subset of these three that is not empty, the full one first.
    #[must_use]
    pub fn subsets() -> [Self; 7] {
        [7, 1, 2, 4, 3, 5, 6].map(Self::from_mask)
    }

    /// The subset as a bit mask: 1 value, 2 locations, 4 weights, 8 references.
    #[must_use]
    pub const fn mask(self) -> u32 {
        self.value as u32
            | (self.locations as u32) << 1
            | (self.weights as u32) << 2
            | (self.references as u32) << 3
    }

    const fn from_mask(mask: u32) -> Self {
        Self {
            value: mask & 1 != 0,
            locations: mask & 2 != 0,
            weights: mask & 4 != 0,
            references: mask & 8 != 0,
        }
    }

    /// Whether a call for these gradients has a tensor: gradients outside of the subset are the only ones it lacks.
    #[must_use]
    pub const fn includes(self, role: Role) -> bool {
        match role {
            Role::GradValue => self.value,
            Role::GradLocations | Role::GradOffsets => self.locations,
            Role::GradReferences => self.references,
            Role::GradWeights | Role::GradLogits => self.weights,
            Role::Value | Role::Locations | Role::Weights => true,
            Role::References | Role::Offsets | Role::Logits => true,
            Role::Output | Role::GradOutput => true,
        }
    }

    /// Whether any gradient of the samples is computed.
    #[must_use]
    pub const fn of_samples(self) -> bool {
        self.locations || self.weights || self.references
    }
}

/// What only a backward call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardCall {
    /// Which gradients are computed.
    pub gradients: Gradients,
    /// Whether every run must give the same bits.
    pub mode: Mode,
    /// Strides of the gradient of the output.
    pub grad_output: OutputStrides,
}

impl BackwardCall {
    /// All gradients, fast, of a contiguous gradient of the output.
    #[must_use]
    pub fn new(problem: &Problem) -> Self {
        Self {
            gradients: Gradients::ALL,
            mode: Mode::Fast,
            grad_output: OutputStrides::packed(problem),
        }
    }
}

impl Default for Gradients {
    fn default() -> Self {
        Self::ALL
    }
}

impl fmt::Display for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            (self.value, "value"),
            (self.locations, "locations"),
            (self.weights, "weights"),
            (self.references, "references"),
        ];
        let names: Vec<&str> =
            named.into_iter().filter_map(|(is_in, name)| is_in.then_some(name)).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subset_is_there_once_and_keeps_its_mask() {
        let mut masks = Gradients::subsets().map(Gradients::mask);
        masks.sort_unstable();
        assert_eq!(masks, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Gradients::subsets()[0], Gradients::ALL);
        assert_eq!(Gradients::from_mask(5).to_string(), "value+weights");
    }
}
