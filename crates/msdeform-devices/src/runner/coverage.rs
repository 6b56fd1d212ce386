//! Which features of a backend have been reached.

use std::collections::BTreeMap;
use std::fmt;

use msdeform::{DType, Direction, Gradients, Mode, Operator, VariantSpec};

use crate::case::{Case, Wants};
use crate::runner::Resolved;

/// Cases by variant and dtype of the values.
pub type Counts = BTreeMap<String, BTreeMap<String, u64>>;

fn add_counts(to: &mut Counts, from: &Counts) {
    for (id, dtypes) in from {
        let of_variant = to.entry(id.clone()).or_default();
        for (dtype, count) in dtypes {
            *of_variant.entry(dtype.clone()).or_insert(0) += count;
        }
    }
}

fn other_output(id: &str, values: DType) -> String {
    format!("{id} {values} to f32")
}

/// Features by name: a variant with a format, a layout, a knob's value, a kernel, a subset of gradients, a mode;
/// and how often each was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    features: BTreeMap<String, u64>,
    specialisations: BTreeMap<String, u64>,
    /// Cases of each operator, by its name.
    computed: BTreeMap<&'static str, Counts>,
}

impl Coverage {
    /// Adds a feature that could be met.
    pub(crate) fn add(&mut self, feature: String) {
        self.features.entry(feature).or_insert(0);
    }

    /// The features of a variant's spec.
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
        let dtypes = BTreeMap::from([(problem.dtype().name().to_owned(), 1)]);
        let of_operator = self.computed.entry(problem.operator().name).or_default();
        add_counts(of_operator, &BTreeMap::from([(id.to_owned(), dtypes)]));
        if !resolved.defines.is_empty() {
            let specialisation = format!("{id} {}", resolved.defines.join(" "));
            *self.specialisations.entry(specialisation).or_insert(0) += 1;
        }
    }

    /// Features that were met.
    pub fn met(&self) -> usize {
        self.features.values().filter(|&&count| count > 0).count()
    }

    /// All features.
    pub fn possible(&self) -> usize {
        self.features.len()
    }

    /// Features that were never met.
    pub fn missed(&self) -> impl Iterator<Item = &str> {
        self.features.iter().filter(|(_, count)| **count == 0).map(|(feature, _)| feature.as_str())
    }

    /// How many different pieces of code ran.
    pub fn specialisations(&self) -> usize {
        self.specialisations.len()
    }

    /// Cases of an operator that each variant computed.
    pub fn computed(&self, operator: &Operator) -> Counts {
        self.computed.get(operator.name).cloned().unwrap_or_default()
    }

    /// Cases of all operators that each variant computed.
    pub fn computed_in_all(&self) -> Counts {
        let mut all = Counts::new();
        self.computed.values().for_each(|counts| add_counts(&mut all, counts));
        all
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
