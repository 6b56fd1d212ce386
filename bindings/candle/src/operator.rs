//! The operators as candle's custom operations, which record what their gradients need.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Storage, Tensor};
use msdeform::{Direction, Offsets, Problem, Role};

use crate::call::{Memory, Placed, problem, readable, with_placed};
use crate::{Levels, Result};

/// Multi-scale deformable attention: samples of `value` at `locations`, summed with `weights`.
///
/// - `value`: `[N, S, M, D]`; images, pixels of all levels, heads, channels.
/// - `levels`: (height, width) of each level; see [`Levels`] for other places of theirs and points of each.
/// - `locations`: `[N, Lq, M, L, P, 2]`, (x, y) in `[0, 1]`, or `[N, Lq, M, samples, 2]`.
/// - `weights`: `[N, Lq, M, L, P]` or `[N, Lq, M, samples]`.
///
/// The result is `[N, Lq, M * D]`, in the format of `value`: `F32`, `F16` or `BF16`, and `F64` by the reference, which is slow.
/// Locations and weights have that format too, or are `F32`. Sums are `f32` for all of them. All three have gradients; only
/// those of tensors that candle tracks are computed.
///
/// # Errors
/// Tensors that are neither on the CPU nor, with the feature `cuda`, on one GPU; other dtypes; shapes that do not fit each other.
pub fn ms_deform_attn(
    value: &Tensor,
    levels: impl Into<Levels>,
    locations: &Tensor,
    weights: &Tensor,
) -> Result<Tensor> {
    let problem = problem([value, locations, weights], None, &levels.into())?;
    let value = readable(Role::Value, value)?;
    let locations = readable(Role::Locations, locations)?;
    let weights = readable(Role::Weights, weights)?;
    Ok(value.apply_op3(&locations, &weights, Attention { problem, around: Around::Nothing })?)
}

/// Multi-scale deformable attention from what a model's linear layers give: locations are references plus offsets, weights the softmax
/// of the logits, by the rule `around`; neither lies in memory.
///
/// - `value`, `levels`: as of [`ms_deform_attn`].
/// - `references`: `[N, Lq, R, 2]`, points (x, y), or `[N, Lq, R, 4]`, boxes (x, y, width, height), with `R` as the rule says: one for
///   each level, one for all, or anchors. `N` and `Lq` may be 1. `F32`, or of the format of the offsets.
/// - `offsets`: `[N, Lq, M, L, P, 2]` or `[N, Lq, M, samples, 2]`; in pixels of the level from points, in parts of a box from boxes.
/// - `logits`: `[N, Lq, M, L, P]` or `[N, Lq, M, samples]`. Images and queries of these three are read wherever they lie.
///
/// All four have gradients. Where candle tracks the references too, offsets and logits are copied into one tensor: its operations
/// record three inputs at most.
///
/// # Errors
/// As [`ms_deform_attn`].
pub fn ms_deform_attn_from_offsets(
    value: &Tensor,
    levels: impl Into<Levels>,
    references: &Tensor,
    offsets: &Tensor,
    logits: &Tensor,
    around: Offsets,
) -> Result<Tensor> {
    let inputs = [value, references, offsets, logits];
    let problem = problem(inputs, Some(around), &levels.into())?;
    let value = readable(Role::Value, value)?;
    let references = references.broadcast_as(&problem.references_shape()[..])?;
    let references = readable(Role::References, &references)?;
    if references.track_op() {
        let packed = Tensor::cat(&[offsets.flatten_from(2)?, logits.flatten_from(2)?], 2)?;
        let tracked = Attention { problem, around: Around::Tracked };
        return Ok(value.apply_op3(&references, &packed, tracked)?);
    }
    let offsets = readable(Role::Offsets, offsets)?;
    let logits = readable(Role::Logits, logits)?;
    let around = Around::Fixed(references);
    Ok(value.apply_op3(&offsets, &logits, Attention { problem, around })?)
}

fn forward<M: Memory>(problem: &Problem, read: &[Placed<'_, M>]) -> Result<(M, Shape)> {
    let mut output = M::compute(problem, Direction::Forward, read, &[Role::Output])?;
    Ok((output.swap_remove(0), problem.output_shape().to_vec().into()))
}

/// What is wanted of tensors that all lie in the same memory.
fn compute<M: Memory>(
    problem: &Problem,
    read: &[(Role, &Tensor)],
    wanted: &[Role],
) -> Result<Vec<Storage>> {
    let found = with_placed(read, |read| M::compute(problem, Direction::Backward, read, wanted))?;
    Ok(found.into_iter().map(M::into_storage).collect())
}

/// The gradients of those inputs that candle tracks, each in the place and the shape of its input.
fn backward(
    problem: &Problem,
    inputs: &[(Role, &Tensor)],
    upstream: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    // Candle's sums are contiguous, which nothing promises.
    let upstream = upstream.contiguous()?;
    let read = [inputs, &[(Role::GradOutput, &upstream)]].concat();
    let wants = |(role, input): &(Role, &Tensor)| role.gradient().filter(|_| input.track_op());
    let wanted: Vec<Role> = inputs.iter().filter_map(wants).collect();
    let found = match upstream.device() {
        #[cfg(feature = "cuda")]
        device if device.is_cuda() => compute::<CudaStorage>(problem, &read, &wanted)?,
        _ => compute::<CpuStorage>(problem, &read, &wanted)?,
    };
    let mut found = found.into_iter();
    let gradient = |input: &(Role, &Tensor)| {
        let storage = wants(input).and_then(|_| found.next())?;
        Some(Tensor::from_storage(storage, input.1.dims(), BackpropOp::none(), false))
    };
    Ok(inputs.iter().map(gradient).collect())
}

/// What the operation reads in addition to value, positions and shares.
enum Around {
    /// Nothing: the plain operator.
    Nothing,
    /// References that are not tracked; offsets and logits are.
    Fixed(Tensor),
    /// References that are tracked: inputs are values, references, and one tensor of offsets and logits
    /// `[N, Lq, M * samples * (2 + 1)]`.
    Tracked,
}

/// Values and samples.
struct Attention {
    problem: Problem,
    around: Around,
}

impl Attention {
    /// Of the inputs, where each is a tensor of the call.
    fn roles(&self) -> [Role; 3] {
        match self.around {
            Around::Nothing => [Role::Value, Role::Locations, Role::Weights],
            _ => [Role::Value, Role::Offsets, Role::Logits],
        }
    }

    /// What is read in addition to the inputs.
    fn others(&self) -> Vec<(Role, &Tensor)> {
        match &self.around {
            Around::Fixed(references) => vec![(Role::References, references)],
            _ => Vec::new(),
        }
    }

    /// Numbers of one query where they lie in one tensor: offsets, then logits.
    fn row(&self) -> (usize, usize) {
        let logits = self.problem.heads() * self.problem.samples();
        (2 * logits, logits)
    }

    fn forward<M: Memory>(&self, inputs: [(&M, &Layout); 3]) -> candle_core::Result<(M, Shape)> {
        if let Around::Tracked = self.around {
            let [(s1, l1), (s2, l2), (s3, l3)] = inputs;
            let (offsets, logits) = self.row();
            let of_offsets = l3.narrow(2, 0, offsets)?;
            let of_logits = l3.narrow(2, offsets, logits)?;
            let placed = [
                (Role::Value, s1, l1),
                (Role::References, s2, l2),
                (Role::Offsets, s3, &of_offsets),
                (Role::Logits, s3, &of_logits),
            ];
            return Ok(forward(&self.problem, &placed)?);
        }
        let roles = self.roles();
        let placed = [0, 1, 2].map(|at: usize| (roles[at], inputs[at].0, inputs[at].1));
        let output = with_placed(&self.others(), |others| {
            forward(&self.problem, &[&placed, others].concat())
        })?;
        Ok(output)
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "ms-deform-attn"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        self.forward([(s1, l1), (s2, l2), (s3, l3)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s1: &CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
        s3: &CudaStorage,
        l3: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        self.forward([(s1, l1), (s2, l2), (s3, l3)])
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        arg3: &Tensor,
        _: &Tensor,
        upstream: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        if let Around::Tracked = self.around {
            let (offsets, logits) = self.row();
            let (offsets, logits) = (arg3.narrow(2, 0, offsets)?, arg3.narrow(2, offsets, logits)?);
            let (offsets, logits) =
                (readable(Role::Offsets, &offsets)?, readable(Role::Logits, &logits)?);
            let inputs = [
                (Role::Value, arg1),
                (Role::References, arg2),
                (Role::Offsets, &offsets),
                (Role::Logits, &logits),
            ];
            let mut gradients = backward(&self.problem, &inputs, upstream)?.into_iter();
            let mut next = || gradients.next().flatten();
            let (value, references) = (next(), next());
            let packed = match (next(), next()) {
                (Some(offsets), Some(logits)) => Some(Tensor::cat(&[offsets, logits], 2)?),
                _ => None,
            };
            return Ok((value, references, packed));
        }
        let [value, positions, shares] = self.roles();
        let mut inputs = vec![(value, arg1), (positions, arg2), (shares, arg3)];
        // The caller does not track the references, so their gradient is `None`.
        inputs.extend(self.others());
        let mut gradients = backward(&self.problem, &inputs, upstream)?.into_iter();
        let mut next = || gradients.next().flatten();
        Ok((next(), next(), next()))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Result, Var};

    use super::*;

    #[test]
    fn a_gradient_that_is_a_view_is_read_as_one() -> Result<()> {
        let random = |shape: &[usize]| Var::rand(0f32, 1.0, shape, &Device::Cpu);
        let problem = Problem::builder().heads(2).channels(3).queries(5).points(2).levels([(4, 3)]);
        let operation = Attention { problem: problem.build().unwrap(), around: Around::Nothing };
        let value = random(&[1, 12, 2, 3])?;
        let (locations, weights) = (random(&[1, 5, 2, 2, 2])?, random(&[1, 5, 2, 2])?);
        let upstream = random(&[1, 6, 5])?.transpose(1, 2)?;
        let gradient = |upstream: &Tensor| -> Result<Vec<f32>> {
            let result = operation.bwd(&value, &locations, &weights, upstream, upstream)?;
            result.0.unwrap().flatten_all()?.to_vec1()
        };
        let found = gradient(&upstream)?;
        assert!(found.iter().any(|&x| x != 0.0));
        assert_eq!(found, gradient(&upstream.contiguous()?)?);
        Ok(())
    }
}
