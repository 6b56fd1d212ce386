//! From a case that fails to the smallest one around it that still does.

use msdeform::{DType, Gradients, Mode, Problem, ProblemBuilder, ValueLayout};

use crate::case::{
    Case, Numbers, Samples, SourceMemory, Starts, UpstreamMemory, ValueMemory, Values,
    VariantChoice, Wants, Weights,
};

/// The smallest case that `fails`, found by making one thing simpler at a time; at most `tries` are tried.
pub fn shrink(case: &Case, tries: usize, mut fails: impl FnMut(&Case) -> bool) -> Case {
    let mut smallest = case.clone();
    let mut left = tries;
    loop {
        let mut simpler = simpler(&smallest).into_iter();
        let found = simpler.find(|candidate| {
            if left == 0 {
                return false;
            }
            left -= 1;
            fails(candidate)
        });
        match found {
            Some(candidate) => smallest = candidate,
            None => return smallest,
        }
    }
}

/// Cases with one thing simpler, what saves most first.
fn simpler(case: &Case) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut push = |candidate: Case| {
        if candidate != *case && !wants_what_is_not_there(&candidate) {
            cases.push(candidate);
        }
    };
    for problem in smaller_problems(&case.problem) {
        push(Case { problem, ..case.clone() });
    }
    push(Case { starts: Starts::default(), ..case.clone() });
    push(Case { value_memory: ValueMemory::default(), ..case.clone() });
    push(Case { upstream_memory: UpstreamMemory::Packed, ..case.clone() });
    push(Case { source_memory: SourceMemory::Packed, ..case.clone() });
    push(Case { raster_width: 0, ..case.clone() });
    push(Case { mode: Mode::Fast, ..case.clone() });
    if let Wants::Gradients(Gradients { value, locations, weights, references }) = case.wants {
        for one in [
            Gradients { value, ..Gradients::NONE },
            Gradients { locations, ..Gradients::NONE },
            Gradients { weights, ..Gradients::NONE },
            Gradients { references, ..Gradients::NONE },
        ] {
            if one.mask() != 0 {
                push(Case { wants: Wants::Gradients(one), ..case.clone() });
            }
        }
    }
    let plain = Numbers::default();
    let numbers = case.numbers;
    push(Case { numbers: plain, ..case.clone() });
    push(Case { numbers: Numbers { values: Values::Unit, ..numbers }, ..case.clone() });
    push(Case { numbers: Numbers { upstream: Values::Unit, ..numbers }, ..case.clone() });
    push(Case { numbers: Numbers { weights: Weights::Softmax, ..numbers }, ..case.clone() });
    push(Case { numbers: Numbers { samples: Samples::Inside, ..numbers }, ..case.clone() });
    if let VariantChoice::Named { variant, knobs } = &case.choice {
        push(Case { choice: VariantChoice::Own, ..case.clone() });
        for index in 0..knobs.len() {
            let mut fewer = knobs.clone();
            fewer.remove(index);
            let choice = VariantChoice::Named { variant: variant.clone(), knobs: fewer };
            push(Case { choice, ..case.clone() });
        }
    }
    cases
}

/// Gradients of references where there are none: that fails for a reason of its own.
fn wants_what_is_not_there(case: &Case) -> bool {
    let wants_references = matches!(case.wants, Wants::Gradients(wanted) if wanted.references);
    wants_references && case.problem.offsets().is_none()
}

fn smaller_problems(problem: &Problem) -> Vec<Problem> {
    let mut builders: Vec<ProblemBuilder> = Vec::new();
    let base = || problem.to_builder();
    if problem.offsets().is_some() {
        builders.push(base().given_samples());
        builders.push(base().offsets(msdeform::Offsets::from_points()));
        builders.push(base().reference_dtype(problem.sampling_dtype()));
    }
    for smaller in fewer(problem.queries()) {
        builders.push(base().queries(smaller));
    }
    for smaller in fewer(problem.batch()) {
        builders.push(base().batch(smaller));
    }
    for smaller in fewer(problem.heads()) {
        builders.push(base().heads(smaller));
    }
    for smaller in fewer(problem.channels()) {
        builders.push(base().channels(smaller));
    }
    let sizes: Vec<(i64, i64)> =
        problem.levels().iter().map(|level| (level.height as i64, level.width as i64)).collect();
    let points = problem.points();
    for without in 0..sizes.len() {
        let (mut sizes, mut points) = (sizes.clone(), points.to_vec());
        sizes.remove(without);
        points.remove(without);
        builders.push(base().packed().levels(sizes).points_per_level(points));
    }
    for level in 0..sizes.len() {
        for smaller in fewer(sizes[level].0 as usize) {
            let mut sizes = sizes.clone();
            sizes[level].0 = smaller as i64;
            builders.push(base().packed().levels(sizes));
        }
        for smaller in fewer(sizes[level].1 as usize) {
            let mut sizes = sizes.clone();
            sizes[level].1 = smaller as i64;
            builders.push(base().packed().levels(sizes));
        }
        for smaller in fewer(points[level]) {
            let mut points = points.to_vec();
            points[level] = smaller;
            builders.push(base().points_per_level(points));
        }
    }
    builders.push(base().packed());
    builders.push(base().packed().layout(ValueLayout::Interleaved));
    if problem.dtype() != DType::F32 {
        builders.push(base().sampling_dtype(problem.dtype()));
        builders.push(base().output_dtype(problem.dtype()));
    }
    builders.into_iter().filter_map(|builder| builder.build().ok()).collect()
}

/// Half and one less; never none, which is another kind of case.
fn fewer(count: usize) -> impl Iterator<Item = usize> {
    let (half, one_less) = (count / 2, count.saturating_sub(1));
    let candidates = [1, half, one_less];
    let useful = move |index: usize, value: usize| {
        value >= 1 && value < count && !candidates[..index].contains(&value)
    };
    (0..3).filter(move |&i| useful(i, candidates[i])).map(move |i| candidates[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_gone_and_what_does_stays() {
        let problem = Problem::builder()
            .batch(3)
            .heads(8)
            .channels(40)
            .queries(100)
            .levels([(12, 9), (1, 30), (7, 7)])
            .points(4)
            .dtype(DType::F16)
            .build()
            .unwrap();
        let mut case = Case::plain(problem, Wants::Gradients(Gradients::ALL));
        case.starts[0] = 3;
        // Fails if a level is thin and its gradient is computed.
        let fails = |case: &Case| {
            case.problem.levels().iter().any(|level| level.height == 1 && level.width > 2)
                && matches!(case.wants, Wants::Gradients(gradients) if gradients.locations)
        };
        let smallest = shrink(&case, 500, fails);
        assert!(fails(&smallest));
        let problem = &smallest.problem;
        assert_eq!((problem.batch(), problem.heads(), problem.queries()), (1, 1, 1));
        assert_eq!(problem.levels().len(), 1);
        assert_eq!((problem.levels()[0].height, problem.levels()[0].width), (1, 3));
        assert_eq!(smallest.starts, Starts::default());
    }

    #[test]
    fn what_is_found_still_makes_sense() {
        let fused = Problem::builder()
            .heads(2)
            .channels(8)
            .queries(3)
            .levels([(4, 4)])
            .points(2)
            .offsets(msdeform::Offsets::from_points())
            .build()
            .unwrap();
        let wanted = Gradients { references: true, ..Gradients::ALL };
        let case = Case::plain(fused, Wants::Gradients(wanted));
        // Like a kernel that fails on gradients of references. Without references no call has them.
        let fails =
            |case: &Case| matches!(case.wants, Wants::Gradients(wanted) if wanted.references);
        let smallest = shrink(&case, 500, fails);
        assert!(fails(&smallest) && smallest.problem.offsets().is_some());
    }
}
