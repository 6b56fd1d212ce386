//! Which gradients a backward call is asked for.

use std::fmt;

use msdeform::Role;

/// A subset of the three gradients. Only what is in it is computed, and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gradients {
    /// Of the values.
    pub value: bool,
    /// Of the sampling locations.
    pub locations: bool,
    /// Of the attention weights.
    pub weights: bool,
}

impl Gradients {
    /// All three.
    pub const ALL: Self = Self { value: true, locations: true, weights: true };

    /// Every subset that asks for something, all three first.
    #[must_use]
    pub fn subsets() -> [Self; 7] {
        [7, 1, 2, 4, 3, 5, 6].map(Self::from_mask)
    }

    /// The number that stands for it in the JIT macros: 1 value, 2 locations, 4 weights.
    #[must_use]
    pub const fn mask(self) -> u32 {
        self.value as u32 | (self.locations as u32) << 1 | (self.weights as u32) << 2
    }

    const fn from_mask(mask: u32) -> Self {
        Self { value: mask & 1 != 0, locations: mask & 2 != 0, weights: mask & 4 != 0 }
    }

    /// Whether a tensor belongs to a call for these: everything but the gradients that are not asked for.
    #[must_use]
    pub const fn includes(self, role: Role) -> bool {
        match role {
            Role::GradValue => self.value,
            Role::GradLocations => self.locations,
            Role::GradWeights => self.weights,
            Role::Value | Role::Locations | Role::Weights | Role::Output | Role::GradOutput => true,
        }
    }

    /// Whether a gradient is asked for that belongs to a sample: of its location or its weight.
    #[must_use]
    pub const fn of_samples(self) -> bool {
        self.locations || self.weights
    }
}

impl Default for Gradients {
    fn default() -> Self {
        Self::ALL
    }
}

impl fmt::Display for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named =
            [(self.value, "value"), (self.locations, "locations"), (self.weights, "weights")];
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
