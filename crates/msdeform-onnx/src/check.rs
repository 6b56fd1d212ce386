//! A site on random numbers, against the operator's reference.

use msdeform::Problem;

use crate::array::Array;
use crate::dim::Sizes;
use crate::evaluate::{Context, Reason};
use crate::site::{Adaptation, Levels, Operand, Site};

/// Both sides are computed in f64: they differ by rounding alone.
const TOLERANCE: f64 = 1e-9;

/// Numbers that are the same on every machine (`SplitMix64`), between 0 and 1.
#[derive(Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^= x >> 31;
        (x >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Runs the site's own nodes and the reference on the same random inputs; returns the largest difference, which is within
/// rounding, or says that it is not. Some samples lie outside of their levels.
///
/// `images` names tensors that follow from the value alone, as levels do. They are computed in full, also where the run has few queries.
pub(crate) fn against_reference(
    context: &Context<'_>,
    sizes: &mut Sizes,
    site: &Site,
    images: &[&str],
) -> Result<f64, Reason> {
    let (Some([locations, weights]), Levels::Known(levels)) = (&site.samples, &site.levels) else {
        return Err("its levels are not known".into());
    };
    let mut numbers = Numbers(1);
    let mut full = sizes.in_full();
    let mut random = |sizes: &Sizes, operand: &Operand, low: f64, high: f64| {
        let dims = context.facts.shape(&operand.tensor).and_then(|dims| sizes.shape(dims));
        let array =
            dims.and_then(|shape| Array::filled(&shape, |_| low + (high - low) * numbers.next()));
        array.ok_or_else(|| format!("the shape of `{}` is not known", operand.tensor))
    };
    let value = random(&full, &site.value, -1.0, 1.0)?;
    let given_locations = random(sizes, locations, -0.2, 1.2)?;
    let given_weights = random(sizes, weights, 0.0, 1.0)?;
    // The levels first, in their full sizes.
    let given = vec![(site.value.tensor.as_str(), value.clone())];
    let levels_of_value = context.run(&mut full, given, images)?;
    let mut inputs: Vec<_> = images.iter().copied().zip(levels_of_value).collect();
    inputs.push((locations.tensor.as_str(), given_locations.clone()));
    inputs.push((weights.tensor.as_str(), given_weights.clone()));
    let mut found = context.run(sizes, inputs, &[&site.output])?;
    if site.is_output_transposed {
        found[0] = found[0].transposed(&[0, 2, 1]).ok_or("its output has no three axes")?;
    }
    let steps = "its tensors do not take the steps to the operator";
    let value = after(&site.value.steps, value).ok_or(steps)?;
    let locations = after(&locations.steps, given_locations).ok_or(steps)?;
    let weights = after(&weights.steps, given_weights).ok_or(steps)?;
    let &[batch, pixels, heads, channels] = &value.shape[..] else { return Err(steps.into()) };
    let problem = Problem::builder()
        .batch(batch)
        .heads(heads)
        .channels(channels)
        .queries(weights.shape.get(1).copied().unwrap_or(0))
        .levels(levels.iter().map(|level| (level.height as i64, level.width as i64)))
        .level_starts(levels.iter().map(|level| level.start as i64))
        .spatial(pixels)
        .points_per_level(site.points.clone().unwrap_or_default())
        .build()
        .map_err(|error| error.to_string())?;
    let fits = value.data.len() == problem.value_len()
        && locations.data.len() == problem.locations_len()
        && weights.data.len() == problem.weights_len()
        && found[0].data.len() == problem.output_len();
    if !fits {
        return Err("its tensors do not fit together".into());
    }
    let expected =
        msdeform::reference::forward(&problem, &value.data, &locations.data, &weights.data);
    let differences = expected.iter().zip(&found[0].data).map(|(a, b)| (a - b).abs());
    // NaN stays: it is no difference that is small enough.
    let largest = differences.fold(0.0f64, |a, b| if b.is_nan() || b > a { b } else { a });
    if largest <= TOLERANCE {
        Ok(largest)
    } else {
        Err(format!("on random inputs it differs from the attention by {largest:.1e}"))
    }
}

fn after(steps: &[Adaptation], mut array: Array<f64>) -> Option<Array<f64>> {
    for step in steps {
        array = match step {
            Adaptation::Reshape(target) => {
                let rest: i64 = target.iter().filter(|&&size| size > 0).product();
                let open = i64::try_from(array.data.len()).ok()?.checked_div(rest)?;
                let shape = target
                    .iter()
                    .map(|&size| usize::try_from(if size < 0 { open } else { size }).ok());
                array.reshaped(shape.collect::<Option<_>>()?)?
            }
            Adaptation::Transpose(perm) => {
                let perm =
                    perm.iter().map(|&at| usize::try_from(at).ok()).collect::<Option<Vec<_>>>()?;
                array.transposed(&perm)?
            }
            Adaptation::Scale { factor, shift } => {
                let data = array.data.iter().map(|x| x * factor + shift).collect();
                Array { shape: array.shape, data }
            }
        };
    }
    Some(array)
}
