//! What a backward call computes.

use std::fmt;

use crate::{Direction, Mode, OutputStrides, Problem, Role};

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
    pub fn subsets() -> [Self; 7] {
        [7, 1, 2, 4, 3, 5, 6].map(Self::from_mask)
    }

    /// The subset as a bit mask: 1 value, 2 locations, 4 weights, 8 references.
    pub const fn mask(self) -> u32 {
        self.value as u32
            | (self.locations as u32) << 1
            | (self.weights as u32) << 2
            | (self.references as u32) << 3
    }

    /// The subset of a [mask](Gradients::mask). Other bits are ignored.
    pub const fn from_mask(mask: u32) -> Self {
        Self {
            value: mask & 1 != 0,
            locations: mask & 2 != 0,
            weights: mask & 4 != 0,
            references: mask & 8 != 0,
        }
    }

    /// All gradients that the problem's operator has.
    pub fn all_of(problem: &Problem) -> Self {
        problem.operator().written(Direction::Backward).collect()
    }

    /// Whether a call for these gradients has a tensor: gradients outside of the subset are the only ones it lacks.
    pub const fn includes(self, role: Role) -> bool {
        let bit = Self::bit(role);
        bit == 0 || self.mask() & bit != 0
    }

    /// The bit of a gradient in the mask; 0 for other tensors.
    const fn bit(role: Role) -> u32 {
        match role {
            Role::GradValue => 1,
            Role::GradLocations | Role::GradOffsets => 2,
            Role::GradWeights | Role::GradLogits => 4,
            Role::GradReferences => 8,
            Role::Value | Role::Locations | Role::Weights => 0,
            Role::References | Role::Offsets | Role::Logits => 0,
            Role::Output | Role::GradOutput => 0,
        }
    }

    /// Whether any gradient of the samples is computed.
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
    pub fn new(problem: &Problem) -> Self {
        Self {
            gradients: Gradients::ALL,
            mode: Mode::Fast,
            grad_output: OutputStrides::packed(problem),
        }
    }
}

impl FromIterator<Role> for Gradients {
    /// The gradients among some roles.
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        Self::from_mask(roles.into_iter().fold(0, |mask, role| mask | Self::bit(role)))
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
    use crate::Offsets;

    #[test]
    fn every_subset_is_there_once_and_keeps_its_mask() {
        let mut masks = Gradients::subsets().map(Gradients::mask);
        masks.sort_unstable();
        assert_eq!(masks, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Gradients::subsets()[0], Gradients::ALL);
        assert_eq!(Gradients::from_mask(5).to_string(), "value+weights");
    }

    #[test]
    fn a_problem_has_the_gradients_of_its_operator() {
        let plain = Problem::builder().queries(1).levels([(2, 2)]);
        let fused = plain.clone().offsets(Offsets::from_points()).build().unwrap();
        let references = Gradients { references: true, ..Gradients::ALL };
        assert_eq!(Gradients::all_of(&plain.build().unwrap()), Gradients::ALL);
        assert_eq!(Gradients::all_of(&fused), references);
        for role in Role::ALL {
            let is_gradient = Gradients::from_iter([role]) != Gradients::NONE;
            assert_eq!(Gradients::NONE.includes(role), !is_gradient, "{role}");
            assert!(references.includes(role), "{role}");
        }
    }
}
