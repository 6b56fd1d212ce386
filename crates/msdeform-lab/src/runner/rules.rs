//! What a backend takes and how it would compute it. The generator draws cases by these rules.

use msdeform_cuda::registry::find_among;
use msdeform_cuda::variants::{Configuration, Knob, KnobChoices, Variant};
use msdeform_cuda::{DeviceProps, dispatch, entry_name};

use super::Coverage;
use crate::Random;
use crate::case::{Case, VariantChoice};

/// The rules of a backend. They are arithmetic and need no device.
pub trait Rules: Sync {
    /// Another choice than the backend's own that takes this case: one that a tuning file could make.
    fn choose(&self, case: &Case, random: &mut Random) -> Option<VariantChoice>;

    /// The variant and configuration of a case.
    fn resolve(&self, case: &Case) -> Result<Resolved, String>;

    fn universe(&self) -> Coverage;
}

/// The variant and configuration of a case.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    /// The variant; empty where nothing is launched.
    pub variant: &'static str,
    pub defines: Vec<String>,
    /// Knobs that it can be tuned by, with their values.
    pub knobs: Vec<(&'static str, i64)>,
    pub entries: Vec<String>,
}

/// The rules of a GPU: the dispatcher's tables, and the variants that a tuning file may name.
#[derive(Clone, Debug)]
pub struct CudaRules {
    device: DeviceProps,
    variants: &'static [&'static Variant],
}

impl CudaRules {
    pub const fn new(device: DeviceProps, variants: &'static [&'static Variant]) -> Self {
        Self { device, variants }
    }

    pub(crate) const fn variants(&self) -> &'static [&'static Variant] {
        self.variants
    }

    pub const fn device(&self) -> &DeviceProps {
        &self.device
    }

    /// The variant and its configuration as a plan would have them; `None` where nothing is launched. Pointers
    /// that are not aligned as the variant needs them go to the dispatcher's last resort.
    pub fn configure(
        &self,
        case: &Case,
    ) -> Result<Option<(&'static Variant, Configuration)>, String> {
        let call = case.call(&self.device);
        let (variant, chosen) = match &case.choice {
            VariantChoice::Own => {
                let variant = dispatch::builtin(&call).map_err(|error| error.to_string())?;
                (variant, KnobChoices::default())
            }
            VariantChoice::Named { variant, knobs } => {
                let variant =
                    find_among(self.variants, variant).map_err(|error| error.to_string())?;
                variant.check(&call).map_err(|error| error.to_string())?;
                (variant, KnobChoices::new(variant, knobs).map_err(|error| error.to_string())?)
            }
        };
        if call.is_empty() {
            return Ok(None);
        }
        let configuration = variant.configure(&call, &chosen)?;
        if is_aligned(case, &configuration) {
            return Ok(Some((variant, configuration)));
        }
        let (variant, chosen) = dispatch::unaligned(&call);
        let configuration = variant.configure(&call, &chosen)?;
        Ok(Some((variant, configuration)))
    }
}

/// Whether the offsets of a case leave its pointers aligned as a configuration needs them.
fn is_aligned(case: &Case, configuration: &Configuration) -> bool {
    case.tensors().all(|(role, _)| {
        let alignment = configuration.alignment(role.storage());
        case.problem.len_of(role) == 0 || case.offset_bytes(role).is_multiple_of(alignment)
    })
}

impl Rules for CudaRules {
    fn choose(&self, case: &Case, random: &mut Random) -> Option<VariantChoice> {
        // A knob may need others: each one that is turned is tried with several others.
        const TRIES: usize = 30;
        const COMPANIES: usize = 8;
        let fits = |variant: &&&Variant| {
            let spec = variant.spec;
            !spec.rung && variant.check(&case.call(&self.device)).is_ok()
        };
        let fitting: Vec<_> = self.variants.iter().filter(fits).collect();
        for _ in 0..TRIES {
            let variant = fitting.get(random.below(fitting.len()))?;
            let settable: Vec<&Knob> = variant.settings().collect();
            let draw = |random: &mut Random| {
                let knob = settable[random.below(settable.len())];
                (knob.name.to_owned(), random.one_of(knob.values))
            };
            let is_turned = !settable.is_empty() && !random.once_in(7);
            let turned = is_turned.then(|| draw(random));
            for _ in 0..COMPANIES {
                let mut knobs: Vec<(String, i64)> = turned.iter().cloned().collect();
                // One turned as often as several: neighbours of what the dispatcher does, and far corners.
                let others = if is_turned { random.one_of(&[0, 0, 0, 1, 2, 4]) } else { 0 };
                for _ in 0..others {
                    let other = draw(random);
                    if knobs.iter().all(|(name, _)| *name != other.0) {
                        knobs.push(other);
                    }
                }
                let choice = VariantChoice::Named { variant: variant.spec.id.to_owned(), knobs };
                let chosen = Case { choice, ..case.clone() };
                if self.configure(&chosen).is_ok() {
                    return Some(chosen.choice);
                }
            }
        }
        None
    }

    fn resolve(&self, case: &Case) -> Result<Resolved, String> {
        let Some((variant, configuration)) = self.configure(case)? else {
            return Ok(Resolved::default());
        };
        let id = variant.spec.id;
        let knobs = configuration.knobs.iter().chain(&configuration.constants).copied();
        let launches = configuration.pipeline.launches();
        Ok(Resolved {
            variant: id,
            knobs: knobs.collect(),
            entries: launches.map(|(step, _)| entry_name(id, step)).collect(),
            defines: configuration.defines(variant, &case.call(&self.device)),
        })
    }

    fn universe(&self) -> Coverage {
        let mut universe = Coverage::default();
        for variant in self.variants.iter().filter(|variant| !variant.spec.rung) {
            universe.add_spec(variant.spec, variant.is_deterministic);
            if variant.takes_other_outputs {
                universe.add_other_outputs(variant.spec);
            }
            let id = variant.spec.id;
            for Knob { name, values, .. } in variant.settings() {
                for value in *values {
                    universe.add(format!("{id} {name}={value}"));
                }
            }
            for entry in entries(variant.source.text) {
                universe.add(format!("{id} kernel {entry}"));
            }
        }
        universe
    }
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split("extern \"C\" __global__").skip(1).filter_map(|rest| {
        let head = rest.split("(const __grid_constant__").next()?;
        head.split_whitespace().last()
    })
}
