//! A node and the inputs of its runs, on every provider.

use msdeform::{DType, Problem};

use crate::api::{Context, Input, KernelInfo};
use crate::call::{Attributes, Call, Shape};
use crate::error::Error;
use crate::operators::{FIRST_SAMPLES, Operator, element_type, format_of, type_name};

/// A node of a session: what does not change from run to run.
#[derive(Debug)]
pub(crate) struct Node {
    pub operator: &'static Operator,
    /// Of the values.
    pub format: DType,
    attributes: Attributes,
}

/// The tensors of a run. Of the fused operator, `locations` are its offsets and `weights` its logits.
pub(crate) struct Inputs<'a> {
    pub value: Input<'a>,
    shapes: Input<'a>,
    starts: Input<'a>,
    /// Only of the fused operator.
    pub references: Option<Input<'a>>,
    pub locations: Input<'a>,
    pub weights: Input<'a>,
}

impl Node {
    /// Checks types and attributes.
    pub(crate) fn new(
        operator: &'static Operator,
        format: DType,
        info: &KernelInfo<'_>,
    ) -> Result<Self, Error> {
        for (index, &tensor) in operator.inputs.iter().enumerate().skip(FIRST_SAMPLES) {
            let found = info.input_type(index)?;
            let fits = [Some(format), (!operator.one_type).then_some(DType::F32)];
            if format_of(found).is_none_or(|found| !fits.contains(&Some(found))) {
                let own = type_name(element_type(format) as i32);
                let expected = match (operator.one_type, format) {
                    (true, _) | (_, DType::F32) => format!("{own} like `value`"),
                    _ => format!("{own} like `value`, or float"),
                };
                return Err(Error::Type { tensor, found: type_name(found), expected });
            }
        }
        let attributes = Attributes::read(info, operator.has_rule())?;
        Ok(Self { operator, format, attributes })
    }

    /// The tensors of a run.
    pub(crate) fn inputs<'a>(&self, context: &Context<'a>) -> Result<Inputs<'a>, Error> {
        let input = |index: usize| context.input(index, self.operator.inputs[index]);
        let last = self.operator.inputs.len() - 1;
        Ok(Inputs {
            value: input(0)?,
            shapes: input(1)?,
            starts: input(2)?,
            references: self.operator.has_rule().then(|| input(FIRST_SAMPLES)).transpose()?,
            locations: input(last - 1)?,
            weights: input(last)?,
        })
    }

    /// The call that these tensors describe. It reads shapes and starts, so they must be in host memory.
    pub(crate) fn call<'a>(&'a self, inputs: &Inputs<'a>) -> Result<Call<'a>, Error> {
        let (sampling_format, reference_format) = inputs.formats()?;
        Ok(Call {
            attributes: &self.attributes,
            format: self.format,
            sampling_format,
            reference_format,
            value: inputs.value.shape,
            level_shapes: inputs.shapes.shape,
            level_starts: inputs.starts.shape,
            references: inputs.references.as_ref().map_or(Shape::NONE, |input| input.shape),
            locations: inputs.locations.shape,
            weights: inputs.weights.shape,
            shapes: inputs.shapes.integers()?,
            starts: inputs.starts.integers()?,
        })
    }

    /// The shape of the output.
    pub(crate) fn output_shape(&self, problem: &Problem) -> Vec<usize> {
        let [batch, queries, width] = problem.output_shape();
        if self.operator.splits_heads {
            vec![batch, queries, problem.heads(), problem.channels()]
        } else {
            vec![batch, queries, width]
        }
    }
}

impl Inputs<'_> {
    /// The formats of locations and weights, and of references: one for the first two, `f32` where they differ.
    fn formats(&self) -> Result<(DType, DType), Error> {
        let one = |first: DType, second: DType| if first == second { first } else { DType::F32 };
        let sampling = one(self.locations.format()?, self.weights.format()?);
        let references = match &self.references {
            // They may be wider than offsets, and no narrower.
            Some(references) => one(references.format()?, sampling),
            None => sampling,
        };
        Ok((sampling, references))
    }
}

/// Strides of images and of queries of the references, if all images or all queries share them; else `None`.
pub(crate) fn shared_strides(problem: &Problem, sizes: &[i64]) -> Option<[usize; 2]> {
    let [batch, queries, references, components] = problem.references_shape();
    let is_one = |axis: usize, size: usize| sizes.get(axis) == Some(&1) && size != 1;
    let (one_image, one_query) = (is_one(0, batch), is_one(1, queries));
    if !one_image && !one_query {
        return None;
    }
    let row = references * components;
    let rows = if one_query { 1 } else { queries };
    Some([if one_image { 0 } else { rows * row }, if one_query { 0 } else { row }])
}
