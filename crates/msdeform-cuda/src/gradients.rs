//! Which gradients a backward call is asked for.

use std::fmt;

use msdeform::Role;

/// A subset of the gradients. Only what is in it is computed, and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gradients {
    /// Of the values.
    pub value: bool,
    /// Of the sampling locations.
    pub locations: bool,
    /// Of the attention weights.
    pub weights: bool,
    /// Of the references, in calls from offsets; those of offsets and logits are called like those of locations and weights.
    pub references: bool,
}

impl Gradients {
    /// All three that every call has.
    pub const ALL: Self = Self { value: true, locations: true, weights: true, references: false };

    /// None.
    pub const NONE: Self = Self::from_mask(0);

    /// Every subset that asks for something, all three first.
    #[must_use]
    pub fn subsets() -> [Self; 7] {
        [7, 1, 2, 4, 3, 5, 6].map(Self::from_mask)
    }

    /// The number that stands for it in the JIT macros: 1 value, 2 locations, 4 weights, 8 references.
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

    /// Whether a tensor belongs to a call for these: everything but the gradients that are not asked for.
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

    /// Whether a gradient is asked for that belongs to a sample: of its location or its weight.
    #[must_use]
    pub const fn of_samples(self) -> bool {
        self.locations || self.weights || self.references
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
            named.into_iter().filter_map(|(asked, name)| asked.then_some(name)).collect();
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
