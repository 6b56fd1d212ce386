//! A node and the inputs of its runs, on every provider.

use std::sync::Arc;

use msdeform::{DType, Problem, Role};

use crate::api::{Context, Input, KernelInfo};
use crate::call::{Attributes, Call};
use crate::error::Error;
use crate::operators::{NodeKind, element_type, format_of, type_name};

/// A node of a session: what does not change from run to run.
#[derive(Debug)]
pub(crate) struct Node {
    kind: &'static NodeKind,
    /// Of the values.
    pub format: DType,
    attributes: Arc<Attributes>,
}

/// The tensors of a run.
pub(crate) struct Inputs<'a> {
    /// The inputs of the operator, in its order.
    pub tensors: Vec<(Role, Input<'a>)>,
    shapes: Input<'a>,
    starts: Input<'a>,
}

impl Node {
    /// Checks types and attributes.
    pub(crate) fn new(
        kind: &'static NodeKind,
        format: DType,
        info: &KernelInfo<'_>,
    ) -> Result<Self, Error> {
        for (index, role) in kind.inputs().skip(1) {
            let found = info.input_type(index)?;
            let fits = [Some(format), (!kind.one_type).then_some(DType::F32)];
            if format_of(found).is_none_or(|found| !fits.contains(&Some(found))) {
                let own = type_name(element_type(format) as i32);
                let expected = match (kind.one_type, format) {
                    (true, _) | (_, DType::F32) => format!("{own} like `value`"),
                    _ => format!("{own} like `value`, or float"),
                };
                let found = type_name(found);
                return Err(Error::Type { tensor: role.name(), found, expected });
            }
        }
        let attributes = Arc::new(Attributes::read(info, kind.has_rule())?);
        Ok(Self { kind, format, attributes })
    }

    /// The tensors of a run.
    pub(crate) fn inputs<'a>(&self, context: &Context<'a>) -> Result<Inputs<'a>, Error> {
        let input = |(index, role): (usize, Role)| Ok((role, context.input(index, role.name())?));
        Ok(Inputs {
            tensors: self.kind.inputs().map(input).collect::<Result<_, Error>>()?,
            shapes: context.input(1, "spatial_shapes")?,
            starts: context.input(2, "level_start_index")?,
        })
    }

    /// The call that these tensors describe. It reads shapes and starts, so they must be in host memory.
    pub(crate) fn call(&self, inputs: &Inputs<'_>) -> Result<Call, Error> {
        let format_of = |wanted: Role| {
            let found = inputs.tensors.iter().find(|(role, _)| *role == wanted);
            found.map_or(Ok(self.format), |(_, input)| input.format())
        };
        // One dtype for positions and shares, `f32` where they differ. References may be wider than offsets, and no narrower.
        let one = |first: DType, second: DType| if first == second { first } else { DType::F32 };
        let roles = self.kind.operator.inputs;
        let [positions, shares] = [roles[roles.len() - 2], roles[roles.len() - 1]];
        let sampling = one(format_of(positions)?, format_of(shares)?);
        let references = one(format_of(Role::References)?, sampling);
        let dtype = |role: Role| match role {
            Role::Value => self.format,
            Role::References => references,
            _ => sampling,
        };
        let tensors = inputs.tensors.iter().map(|(role, input)| (dtype(*role), input.shape));
        Ok(Call {
            attributes: Arc::clone(&self.attributes),
            tensors: tensors.collect(),
            level_shapes: inputs.shapes.shape,
            level_starts: inputs.starts.shape,
            shapes: inputs.shapes.integers()?,
            starts: inputs.starts.integers()?,
        })
    }

    /// The shape of the output.
    pub(crate) fn output_shape(&self, problem: &Problem) -> Vec<usize> {
        let [batch, queries, width] = problem.output_shape();
        if self.kind.splits_heads {
            vec![batch, queries, problem.heads(), problem.channels()]
        } else {
            vec![batch, queries, width]
        }
    }
}

impl Inputs<'_> {
    /// Strides of images and of queries of the references, if all images or all queries share them; else `None`.
    pub(crate) fn shared_strides(&self, problem: &Problem) -> Option<[usize; 2]> {
        let (_, references) = self.tensors.iter().find(|(role, _)| *role == Role::References)?;
        let sizes = references.shape.sizes();
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
}
