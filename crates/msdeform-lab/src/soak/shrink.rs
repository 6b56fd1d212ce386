//! From a case that fails to the smallest one around it that still does.

use msdeform::{DType, Gradients, Offsets, Problem, ProblemBuilder, ValueLayout};

use crate::case::{Case, VariantChoice};

/// The smallest case that `fails`, found by making one thing simpler at a time; at most `tries` are tried.
pub(crate) fn shrink(case: &Case, tries: usize, mut fails: impl FnMut(&Case) -> bool) -> Case {
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
    let mut cases: Vec<Case> = smaller_problems(&case.problem)
        .into_iter()
        .map(|problem| Case { problem, ..case.clone() })
        .collect();
    let mut push = |change: &dyn Fn(&mut Case)| {
        let mut simpler = case.clone();
        change(&mut simpler);
        cases.push(simpler);
    };
    let plain = Case::plain(case.problem.clone(), case.wants);
    push(&|case| case.starts = plain.starts);
    push(&|case| case.value_memory = plain.value_memory);
    push(&|case| case.upstream_memory = plain.upstream_memory);
    push(&|case| case.source_memory = plain.source_memory);
    push(&|case| case.raster_width = 0);
    push(&|case| case.mode = plain.mode);
    let wanted = case.wants.map_or(0, Gradients::mask);
    for one in (0..4).map(|bit| wanted & 1 << bit).filter(|&one| one != 0) {
        push(&|case| case.wants = Some(Gradients::from_mask(one)));
    }
    push(&|case| case.numbers = plain.numbers);
    push(&|case| case.numbers.values = plain.numbers.values);
    push(&|case| case.numbers.upstream = plain.numbers.upstream);
    push(&|case| case.numbers.weights = plain.numbers.weights);
    push(&|case| case.numbers.samples = plain.numbers.samples);
    if let VariantChoice::Named { knobs, .. } = &case.choice {
        push(&|case| case.choice = VariantChoice::Own);
        for index in 0..knobs.len() {
            push(&|case| {
                if let VariantChoice::Named { knobs, .. } = &mut case.choice {
                    knobs.remove(index);
                }
            });
        }
    }
    cases.retain(|candidate| candidate != case && !wants_what_is_not_there(candidate));
    cases
}

/// Gradients of references where there are none: that fails for a reason of its own.
fn wants_what_is_not_there(case: &Case) -> bool {
    case.wants.is_some_and(|wanted| wanted.references) && case.problem.offsets().is_none()
}

fn smaller_problems(problem: &Problem) -> Vec<Problem> {
    let base = || problem.to_builder();
    let mut builders: Vec<ProblemBuilder> = Vec::new();
    if problem.offsets().is_some() {
        builders.push(base().given_samples());
        builders.push(base().offsets(Offsets::from_points()));
        builders.push(base().reference_dtype(problem.sampling_dtype()));
    }
    builders.extend(fewer(problem.queries()).map(|smaller| base().queries(smaller)));
    builders.extend(fewer(problem.batch()).map(|smaller| base().batch(smaller)));
    builders.extend(fewer(problem.heads()).map(|smaller| base().heads(smaller)));
    builders.extend(fewer(problem.channels()).map(|smaller| base().channels(smaller)));
    let (levels, points) = (problem.levels().iter(), problem.points());
    let sizes: Vec<_> = levels.map(|level| (level.height as i64, level.width as i64)).collect();
    for without in 0..sizes.len() {
        let (mut sizes, mut points) = (sizes.clone(), points.to_vec());
        sizes.remove(without);
        points.remove(without);
        builders.push(base().packed().levels(sizes).points_per_level(points));
    }
    for (level, &(height, width)) in sizes.iter().enumerate() {
        let resized = |size: (i64, i64)| {
            let mut sizes = sizes.clone();
            sizes[level] = size;
            base().packed().levels(sizes)
        };
        builders.extend(fewer(height as usize).map(|smaller| resized((smaller as i64, width))));
        builders.extend(fewer(width as usize).map(|smaller| resized((height, smaller as i64))));
        builders.extend(fewer(points[level]).map(|smaller| {
            let mut points = points.to_vec();
            points[level] = smaller;
            base().points_per_level(points)
        }));
    }
    builders.push(base().packed());
    builders.push(base().packed().layout(ValueLayout::Interleaved));
    if problem.dtype() != DType::F32 {
        builders.push(base().sampling_dtype(problem.dtype()));
        builders.push(base().output_dtype(problem.dtype()));
    }
    builders.into_iter().filter_map(|builder| builder.build().ok()).collect()
}

/// One, half and one less; never none, which is another kind of case.
fn fewer(count: usize) -> impl Iterator<Item = usize> {
    let mut candidates = vec![1, count / 2, count.saturating_sub(1)];
    candidates.dedup();
    candidates.into_iter().filter(move |&smaller| smaller >= 1 && smaller < count)
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
        let mut case = Case::plain(problem, Some(Gradients::ALL));
        case.starts[0] = 3;
        // Fails if a level is thin and its gradient is computed.
        let fails = |case: &Case| {
            case.problem.levels().iter().any(|level| level.height == 1 && level.width > 2)
                && matches!(case.wants, Some(gradients) if gradients.locations)
        };
        let smallest = shrink(&case, 500, fails);
        assert!(fails(&smallest));
        let problem = &smallest.problem;
        assert_eq!((problem.batch(), problem.heads(), problem.queries()), (1, 1, 1));
        assert_eq!(problem.levels().len(), 1);
        assert_eq!((problem.levels()[0].height, problem.levels()[0].width), (1, 3));
        assert_eq!(smallest.starts, [0; 7]);
    }

    #[test]
    fn what_is_found_still_makes_sense() {
        let fused = Problem::builder()
            .heads(2)
            .channels(8)
            .queries(3)
            .levels([(4, 4)])
            .points(2)
            .offsets(Offsets::from_points())
            .build()
            .unwrap();
        let wanted = Gradients { references: true, ..Gradients::ALL };
        let case = Case::plain(fused, Some(wanted));
        // Like a kernel that fails on gradients of references. Without references no call has them.
        let fails = |case: &Case| matches!(case.wants, Some(wanted) if wanted.references);
        let smallest = shrink(&case, 500, fails);
        assert!(fails(&smallest) && smallest.problem.offsets().is_some());
    }
}
