//! Rounds over the images and heads of a call, one after another in one workspace.

use msdeform::Access;

use super::Call;
use super::tile_lists::{ListCut, ListSizes};
use crate::derived::Derived;
use crate::pipeline::Pipeline;

/// A workspace that is worth no second round.
const SMALL_WORKSPACE: usize = 64 << 20;

/// The room for lists that a call takes without a limit of the caller: together with all gradients 2.5 times what these take. A
/// call for some of the gradients takes as much as one for all.
fn usual_limit(call: &Call<'_>) -> usize {
    let tensors = call.operator().tensors(call.direction());
    let written = tensors.filter(|&(_, access)| access == Access::Write);
    let gradients: usize = written.map(|(role, _)| call.problem.bytes_of(role)).sum();
    (gradients / 2 * 3).max(SMALL_WORKSPACE)
}

/// How the images and heads of a call share a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rounds {
    pub(super) count: usize,
    /// Of a round; the last one may have fewer.
    pub(super) slabs: usize,
}

impl Rounds {
    /// As many rounds, or one for each slab.
    pub(super) fn of(slabs: usize, rounds: usize) -> Self {
        let of_round = slabs.div_ceil(rounds.max(1)).max(1);
        Self { count: slabs.div_ceil(of_round).max(1), slabs: of_round }
    }

    /// As few as keep the workspace within a limit, or one for each slab; not fewer than a knob asks for. `shared` bytes of the
    /// workspace are the same for any number of rounds.
    pub(super) fn within(
        call: &Call<'_>,
        cut: ListCut,
        shared: usize,
        asked: Option<usize>,
    ) -> Result<Self, String> {
        let limit = match (call.workspace_limit, asked) {
            // Knobs may come from a tuning file, which knows nothing of the limit.
            (Some(limit), _) => limit,
            (None, Some(_)) => usize::MAX,
            // A fused call's weights and a packed copy of `grad_output` come on top, because the caller need not hold them.
            (None, None) => usual_limit(call) + shared,
        };
        let asked = asked.unwrap_or(1);
        let bytes = |slabs: usize| {
            let (mut lists, cut) = (Pipeline::default(), ListCut { slabs, ..cut });
            ListSizes::reserve(call.problem, &mut lists, &mut Derived::default(), cut)?;
            Ok::<_, String>(lists.workspace_bytes)
        };
        if shared + bytes(cut.slabs)? <= limit {
            return Ok(Self::of(cut.slabs, asked));
        }
        // Several slabs take at most as much as each by itself, which is rounded up.
        let slabs = limit.saturating_sub(shared) / bytes(1)?.max(1);
        Ok(Self::of(cut.slabs, cut.slabs.div_ceil(slabs.max(1)).max(asked)))
    }
}

#[cfg(test)]
mod tests {
    use msdeform::{DType, Direction, Problem, ProblemBuilder};

    use super::*;
    use crate::driver::DeviceProps;
    use crate::variants::bwd_tile_sort::BwdTileSort;
    use crate::variants::tests::deformable_detr;
    use crate::variants::{KnobChoices, Variant};

    #[test]
    fn rounds_are_equal_and_cover_all_slabs() {
        for slabs in 1..=50 {
            for asked in 1..=60 {
                let rounds = Rounds::of(slabs, asked);
                assert!(rounds.count <= asked, "{slabs} in {asked}: {rounds:?}");
                assert!(
                    (rounds.count - 1) * rounds.slabs < slabs,
                    "{slabs} in {asked}: {rounds:?}"
                );
                assert!(rounds.count * rounds.slabs >= slabs, "{slabs} in {asked}: {rounds:?}");
            }
        }
    }

    /// The workspace and the number of rounds with a limit.
    fn limited(problem: &Problem, workspace_limit: Option<usize>) -> (usize, i64) {
        let device = DeviceProps::h200();
        let call = Call::in_direction(Direction::Backward, problem, &device);
        let call = Call { workspace_limit, ..call };
        let configured = BwdTileSort.configure(&call, &KnobChoices::default()).unwrap();
        let rounds = configured.knobs.iter().find(|(name, _)| *name == "SLAB_ROUNDS").unwrap().1;
        (configured.pipeline.workspace_bytes, rounds)
    }

    #[test]
    fn a_limit_is_kept_with_the_fewest_rounds() {
        let problem = deformable_detr(22_223).build().unwrap();
        let (whole, rounds) = limited(&problem, None);
        assert_eq!(rounds, 1);
        assert_eq!(limited(&problem, Some(whole)), (whole, 1));
        let mut before = 1;
        for limit in [whole - 1, whole / 2 + 4096, whole / 3 + 4096, whole / 5, whole / 16 + 4096] {
            let (bytes, rounds) = limited(&problem, Some(limit));
            assert!(bytes <= limit, "{bytes} bytes in {rounds} rounds, limit {limit}");
            assert!(rounds > before || limit > whole / 2, "{rounds} rounds, limit {limit}");
            before = rounds;
        }
        let least = limited(&problem, Some(0));
        assert_eq!(least.1, 16, "an image and head in each");
        assert_eq!(limited(&problem, Some(whole / 100)), least, "no less is possible");
    }

    #[test]
    fn a_knob_adds_rounds_to_those_of_a_limit_and_removes_none() {
        let (problem, device) = (deformable_detr(22_223).build().unwrap(), DeviceProps::h200());
        let (whole, _) = limited(&problem, None);
        let rounds = |workspace_limit, asked| {
            let call = Call::in_direction(Direction::Backward, &problem, &device);
            let call = Call { workspace_limit, ..call };
            let knobs = KnobChoices::of(&[("SLAB_ROUNDS", asked)]);
            let configured = BwdTileSort.configure(&call, &knobs).unwrap();
            configured.knobs.iter().find(|(name, _)| *name == "SLAB_ROUNDS").unwrap().1
        };
        assert_eq!([rounds(None, 1), rounds(None, 4), rounds(Some(whole), 2)], [1, 4, 2]);
        // Five of sixteen slabs fit, so there are four rounds.
        assert_eq!([rounds(Some(whole / 3 + 4096), 1), rounds(Some(0), 2)], [4, 16]);
    }

    /// The encoders of `msdeform-devices/workloads`.
    fn encoders() -> [(&'static str, ProblemBuilder); 5] {
        let model = |batch, levels: &[(i64, i64)], points, queries| {
            let problem = Problem::builder().batch(batch).heads(8).channels(32).points(points);
            problem.levels(levels.to_vec()).queries(queries)
        };
        let detr = [(100, 167), (50, 84), (25, 42), (13, 21)];
        let mask2former = [(32, 32), (64, 64), (128, 128)];
        let cameras = [(116, 200), (58, 100), (29, 50), (15, 25)];
        let seed = [(92, 160), (46, 80), (23, 40), (12, 20)];
        [
            ("ddetr_enc", model(2, &detr, 4, 22_223)),
            ("m2f_enc", model(2, &mask2former, 4, 21_504)),
            ("bevformer_sca", model(6, &cameras, 8, 9_675)),
            ("bevformer_tsa", model(2, &[(200, 200)], 4, 40_000)),
            ("seed_6x8", model(6, &seed, 8, 15_422)),
        ]
    }

    #[test]
    fn encoders_take_at_most_two_and_a_half_times_their_gradients_in_one_round() {
        for (name, problem) in encoders() {
            for dtype in DType::FAST {
                let problem = problem.clone().dtype(dtype).build().unwrap();
                let (workspace, rounds) = limited(&problem, None);
                assert_eq!(rounds, 1, "{name} {dtype}");
                let samples = problem.weights_len();
                let gradients = (problem.value_len() + 3 * samples) * dtype.size_bytes();
                let times = (workspace + gradients) as f64 / gradients as f64;
                assert!(times <= 2.5, "{name} {dtype}: {times}");
            }
        }
    }
}
