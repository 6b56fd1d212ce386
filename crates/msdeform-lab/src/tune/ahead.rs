//! Compiling ahead of the search.
//!
//! A call needs a few kernels at a time, and the slowest of each batch keeps the other cores waiting. All calls
//! together have hundreds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::device::{Device, KnobbedVariant};
use msdeform::{Direction, Problem, VariantSpec};

use crate::bench::compile_in_turn;

use super::search::{as_they_are, neighbours};

/// Compiles what the searches of these calls will ask for first, until `end`: every variant as it is, then the
/// built-in choice with one knob turned. `progress` hears how many are done, of how many. The rest is
/// compiled when the search needs it.
pub fn compile_ahead(
    device: &dyn Device,
    calls: &[(Problem, Direction)],
    variants: &[&'static VariantSpec],
    end: Instant,
    progress: &(dyn Fn(usize, usize) + Sync),
) {
    let wanted = in_order(device, calls, variants);
    let done = AtomicUsize::new(0);
    let choices: Vec<_> = wanted.iter().map(|(choice, problem)| (choice, *problem)).collect();
    compile_in_turn(device, &choices, Some(end), &|_| {
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, wanted.len());
    });
}

/// What is needed by every call before what is needed by one; of calls that differ only in sizes, which mostly
/// share their code, one at a time.
fn in_order<'a>(
    device: &dyn Device,
    calls: &'a [(Problem, Direction)],
    variants: &[&'static VariantSpec],
) -> Vec<(KnobbedVariant, &'a Problem)> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut wanted = Vec::new();
    for (problem, direction) in calls {
        // A call without a built-in choice is not searched either.
        let Ok(builtin) = device.builtin(problem, *direction) else { continue };
        let builtin = KnobbedVariant::own(builtin);
        let mut choices = vec![builtin.clone()];
        choices.extend(as_they_are(device, problem, builtin.variant, variants));
        let as_they_are = choices.len();
        choices.extend(neighbours(device, problem, &builtin));
        for (index, choice) in choices.into_iter().enumerate() {
            if device.admits(&choice, problem).is_err() {
                continue;
            }
            let class = device.class(problem, *direction);
            let code = format!(
                "{choice} {} {} {} {} {:?}",
                class.dtype, class.layout, class.heads, class.channels, class.points
            );
            let before = seen.entry(code).or_insert(0);
            let turn = index.saturating_sub(as_they_are);
            wanted.push(((*before, index >= as_they_are, turn), (choice, problem)));
            *before += 1;
        }
    }
    wanted.sort_by_key(|(order, _)| *order);
    wanted.into_iter().map(|(_, choice)| choice).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use msdeform::ValueLayout;

    use super::*;
    use crate::fixtures::{TestDevice, case};

    fn calls() -> Vec<(Problem, Direction)> {
        let small = case("edge_one_point", ValueLayout::Interleaved).problem().unwrap();
        let large = small.to_builder().batch(7).build().unwrap();
        vec![(small, Direction::Forward), (large, Direction::Forward)]
    }

    #[test]
    fn variants_are_compiled_before_knobs_and_shared_code_once() {
        let calls = calls();
        let wanted = in_order(&TestDevice, &calls, &TestDevice.variants());
        let of_first = wanted.iter().take_while(|(_, problem)| problem.batch() != 7).count();
        assert_eq!(2 * of_first, wanted.len(), "the second call needs the same code");
        let knobs: Vec<usize> = wanted[..of_first].iter().map(|(c, _)| c.knobs.len()).collect();
        assert!(knobs.is_sorted() && knobs.contains(&0) && knobs.contains(&1), "{knobs:?}");
        assert_eq!(wanted[0].0.variant.id, "fwd_exact");
    }

    #[test]
    fn time_ends_it() {
        let heard = AtomicUsize::new(0);
        let count = |_: usize, _: usize| {
            heard.fetch_add(1, Ordering::Relaxed);
        };
        let variants = TestDevice.variants();
        compile_ahead(&TestDevice, &calls(), &variants, Instant::now(), &count);
        assert_eq!(heard.load(Ordering::Relaxed), 0);
        let end = Instant::now() + Duration::from_secs(60);
        compile_ahead(&TestDevice, &calls(), &variants, end, &count);
        assert_eq!(heard.load(Ordering::Relaxed), in_order(&TestDevice, &calls(), &variants).len());
    }
}
