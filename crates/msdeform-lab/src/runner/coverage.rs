//! Which features of a backend have been reached.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use msdeform::{DType, Direction, Gradients, Mode, Operator, VariantSpec};

use crate::Case;
use crate::runner::Resolved;

/// Cases by variant and dtype of the values.
pub type Counts = BTreeMap<String, BTreeMap<String, u64>>;

fn other_output(id: &str, values: DType) -> String {
    format!("{id} {values} to f32")
}

/// Features by name: a variant with a format, a layout, a knob's value, a kernel, a subset of gradients, a mode;
/// and how often each was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    features: BTreeMap<String, u64>,
    specialisations: BTreeSet<String>,
    /// Cases by operator, variant and dtype of the values.
    computed: BTreeMap<(&'static str, &'static str, DType), u64>,
}

impl Coverage {
    pub(crate) fn add(&mut self, feature: String) {
        self.features.entry(feature).or_insert(0);
    }

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
        if let Some(gradients) = case.wants {
            met.push(format!("{id} gradients {gradients}"));
            met.push(format!("{id} {}", case.mode));
        }
        met.extend(resolved.knobs.iter().map(|(name, value)| format!("{id} {name}={value}")));
        met.extend(resolved.entries.iter().map(|entry| format!("{id} kernel {entry}")));
        for feature in met {
            *self.features.entry(feature).or_insert(0) += 1;
        }
        let kind = (problem.operator().name, id, problem.dtype());
        *self.computed.entry(kind).or_insert(0) += 1;
        if !resolved.defines.is_empty() {
            self.specialisations.insert(format!("{id} {}", resolved.defines.join(" ")));
        }
    }

    pub(crate) fn met(&self) -> usize {
        self.features.values().filter(|&&count| count > 0).count()
    }

    pub(crate) fn possible(&self) -> usize {
        self.features.len()
    }

    pub fn missed(&self) -> impl Iterator<Item = &str> {
        self.features.iter().filter(|(_, count)| **count == 0).map(|(feature, _)| feature.as_str())
    }

    pub(crate) fn specialisations(&self) -> usize {
        self.specialisations.len()
    }

    /// Cases of some operators that each variant computed.
    pub(crate) fn computed(&self, operators: &[&Operator]) -> Counts {
        let mut counts = Counts::new();
        let names: Vec<&str> = operators.iter().map(|operator| operator.name).collect();
        for ((_, id, dtype), count) in
            self.computed.iter().filter(|((name, ..), _)| names.contains(name))
        {
            let of_variant = counts.entry((*id).to_owned()).or_default();
            *of_variant.entry(dtype.name().to_owned()).or_default() += count;
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
