//! What of the rules of a backend has been reached.

use std::collections::BTreeMap;
use std::fmt;

use msdeform::{DType, Direction, Gradients, Mode, VariantSpec};

use crate::case::{Case, Wants};
use crate::runner::Resolved;

fn other_output(id: &str, values: DType) -> String {
    format!("{id} {values} to f32")
}

/// Features by name: a variant with a format, a layout, a knob's value, a kernel, a subset of gradients, a mode;
/// and how often each was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    features: BTreeMap<String, u64>,
    specialisations: BTreeMap<String, u64>,
    /// Cases whose samples follow from offsets, by variant and format of the values.
    from_offsets: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Coverage {
    /// Adds a feature that could be met.
    pub(crate) fn add(&mut self, feature: String) {
        self.features.entry(feature).or_insert(0);
    }

    /// What follows from what a variant says about itself.
    pub(crate) fn add_spec(&mut self, spec: &VariantSpec, is_deterministic: bool) {
        let id = spec.id;
        for &dtype in spec.dtypes {
            self.add(format!("{id} {dtype}+{dtype}"));
            if dtype != DType::F32 {
                self.add(format!("{id} {dtype}+f32"));
            }
        }
        for layout in spec.layouts {
            self.add(format!("{id} {layout}"));
        }
        if spec.direction == Direction::Backward {
            for gradients in Gradients::subsets() {
                self.add(format!("{id} gradients {gradients}"));
            }
            for mode in Mode::ALL {
                if mode == Mode::Fast || is_deterministic {
                    self.add(format!("{id} {mode}"));
                }
            }
        }
    }

    /// That a variant stores outputs in another format than the values.
    pub(crate) fn add_other_outputs(&mut self, spec: &VariantSpec) {
        for &dtype in spec.dtypes.iter().filter(|dtype| **dtype != DType::F32) {
            self.add(other_output(spec.id, dtype));
        }
    }

    /// Counts a case that ran.
    pub fn meet(&mut self, case: &Case, resolved: &Resolved) {
        let id = resolved.variant;
        if id.is_empty() {
            return;
        }
        let problem = &case.problem;
        let mut met = vec![
            format!("{id} {}+{}", problem.dtype(), problem.sampling_dtype()),
            format!("{id} {}", problem.layout()),
        ];
        if problem.output_dtype() != problem.dtype() {
            met.push(other_output(id, problem.dtype()));
        }
        if let Wants::Gradients(gradients) = case.wants {
            met.push(format!("{id} gradients {gradients}"));
            met.push(format!("{id} {}", case.mode));
        }
        met.extend(resolved.knobs.iter().map(|(name, value)| format!("{id} {name}={value}")));
        met.extend(resolved.entries.iter().map(|entry| format!("{id} kernel {entry}")));
        for feature in met {
            *self.features.entry(feature).or_insert(0) += 1;
        }
        if problem.offsets().is_some() {
            let of_variant = self.from_offsets.entry(id.to_owned()).or_default();
            *of_variant.entry(problem.dtype().name().to_owned()).or_insert(0) += 1;
        }
        if !resolved.defines.is_empty() {
            let specialisation = format!("{id} {}", resolved.defines.join(" "));
            *self.specialisations.entry(specialisation).or_insert(0) += 1;
        }
    }

    /// Adds what another has met.
    pub fn merge(&mut self, other: &Self) {
        for (feature, count) in &other.features {
            *self.features.entry(feature.clone()).or_insert(0) += count;
        }
        for (specialisation, count) in &other.specialisations {
            *self.specialisations.entry(specialisation.clone()).or_insert(0) += count;
        }
        for (id, formats) in &other.from_offsets {
            let of_variant = self.from_offsets.entry(id.clone()).or_default();
            for (dtype, count) in formats {
                *of_variant.entry(dtype.clone()).or_insert(0) += count;
            }
        }
    }

    /// Features that were met.
    #[must_use]
    pub fn met(&self) -> usize {
        self.features.values().filter(|&&count| count > 0).count()
    }

    /// All features.
    #[must_use]
    pub fn possible(&self) -> usize {
        self.features.len()
    }

    /// Features that were never met.
    pub fn missed(&self) -> impl Iterator<Item = &str> {
        self.features.iter().filter(|(_, count)| **count == 0).map(|(feature, _)| feature.as_str())
    }

    /// How many different pieces of code ran.
    #[must_use]
    pub fn specialisations(&self) -> usize {
        self.specialisations.len()
    }

    /// Those of [`Coverage::by_variant`] whose samples followed from offsets.
    #[must_use]
    pub fn by_variant_from_offsets(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        self.from_offsets.clone()
    }

    /// Cases that each variant computed, by the format of the values.
    #[must_use]
    pub fn by_variant(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        let mut counts: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for (feature, &count) in self.features.iter().filter(|(_, count)| **count > 0) {
            // Every case has exactly one pair of formats.
            if let Some((id, formats)) = feature.split_once(' ')
                && let Some((dtype, _)) = formats.split_once('+')
                && dtype.parse::<DType>().is_ok()
            {
                let of_variant = counts.entry(id.to_owned()).or_default();
                *of_variant.entry(dtype.to_owned()).or_insert(0) += count;
            }
        }
        counts
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} features", self.met(), self.possible())?;
        match self.specialisations() {
            0 => Ok(()),
            count => write!(f, ", {count} specialisations"),
        }
    }
}
