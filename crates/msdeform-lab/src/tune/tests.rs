use msdeform::{Direction, ValueLayout};
use msdeform_cuda::tuning::{Source, Tuning, TuningFile};

use super::*;
use crate::fixtures::{TestDevice, case};

fn tuned(direction: Direction, seconds: f64) -> TunedCase {
    let case = case("edge_one_point", ValueLayout::Interleaved);
    let inputs = Inputs::of(&case).unwrap();
    let (share, variants) = (Share::of_seconds(seconds), TestDevice.variants());
    tune_case(&TestDevice, (&case, &inputs), direction, &variants, share, &mut |_| {}).unwrap()
}

#[test]
fn helpful_knobs_are_combined_and_wrong_choices_dropped() {
    let found = tuned(Direction::Forward, 60.0);
    // 12 us as it is; the scaled, unwritten and refusing variants claim 5.
    assert_eq!(found.builtin.contender.variant, "fwd_exact");
    assert!((found.builtin.contender.time_us - 12.0).abs() < 1e-9);
    let best = &found.best.contender;
    assert_eq!(best.variant, "fwd_exact");
    assert_eq!(
        best.knobs.iter().map(|(k, v)| (k.as_str(), *v)).collect::<Vec<_>>(),
        [("SPEED", 3), ("WIDTH", 3)]
    );
    assert!((found.gap() - 8.0).abs() < 1e-9, "{}", found.gap());
    assert!(found.best.rel_l2 <= 1e-5);
    let reason = |choice: &str| {
        let dropped = found.dropped.iter().find(|dropped| dropped.choice == choice);
        dropped.unwrap_or_else(|| panic!("{choice} is not dropped")).reason.clone()
    };
    assert!(reason("fwd_scaled").contains("off by 1.0e-4"));
    assert!(reason("fwd_unwritten").contains("NaN"));
    assert!(reason("fwd_once").contains("NaN"));
    assert!(reason("fwd_refuses").contains("broken"));
    assert!(reason("fwd_exact SPEED=4").contains("off by"));
    assert!(reason("fwd_exact WIDTH=4").contains("broken"));
    assert_eq!(found.choices, found.timed + found.dropped.len());
}

#[test]
fn without_time_every_variant_is_still_looked_at_and_no_knob_is() {
    let found = tuned(Direction::Forward, 0.0);
    assert_eq!(found.best, found.builtin);
    assert_eq!((found.timed, found.dropped.len()), (1, 4));
    assert!(found.best.contender.knobs.is_empty() && found.gap() == 0.0);
    assert!(found.untried() > 0, "knobs that were not turned are counted");
}

#[test]
fn the_builtin_choice_stays_where_nothing_right_is_faster() {
    let found = tuned(Direction::Backward, 60.0);
    assert_eq!(found.best, found.builtin);
    assert_eq!(found.best.contender.variant, "bwd_exact");
    let unsteady = found.dropped.iter().find(|d| d.choice == "bwd_unsteady").unwrap();
    assert!(unsteady.reason.contains("other bits"), "{}", unsteady.reason);
}

#[test]
fn a_device_with_one_variant_has_nothing_to_choose() {
    let case = case("edge_one_point", ValueLayout::Interleaved);
    let share = Share::of_seconds(0.0);
    let variants = TestDevice.variants();
    let only: Vec<_> = variants.into_iter().filter(|spec| spec.id == "bwd_exact").collect();
    let inputs = Inputs::of(&case).unwrap();
    let call = (&case, &inputs);
    let found =
        tune_case(&TestDevice, call, Direction::Backward, &only, share, &mut |_| {}).unwrap();
    assert!(!found.has_choice());
}

#[test]
fn what_is_found_becomes_the_entry_that_its_own_call_finds() {
    let found = tuned(Direction::Forward, 60.0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuning.json");
    let mut file = TuningFile::new(TestDevice.origin());
    file.insert(found.entry());
    file.write(&path).unwrap();
    let tuning = Tuning::load(&Source::Named(path), &TestDevice.origin());
    let problem = case("edge_one_point", ValueLayout::Interleaved).problem().unwrap();
    let entry = tuning.find(&TestDevice.class(&problem, Direction::Forward)).unwrap();
    assert_eq!(entry.best, found.best.contender);
}

#[test]
fn a_record_survives_the_disk_and_its_table_counts() {
    let record = TuneRecord::new(
        &TestDevice,
        vec![tuned(Direction::Forward, 60.0), tuned(Direction::Backward, 0.0)],
        Vec::new(),
    );
    let folder = tempfile::tempdir().unwrap();
    record.write(folder.path()).unwrap();
    let read = TuneRecord::load_all(folder.path()).unwrap();
    assert_eq!(read.len(), 1);
    let table = gaps_markdown(&read[0]);
    assert!(table.contains("(1 of 2 within 5 %)"), "{table}");
    assert!(table.contains("| forward | 800.0 % | - | - |"), "{table}");
    assert!(table.contains("| backward | 0.0 % | - | - |"), "{table}");
}

#[test]
fn a_table_says_what_time_left_out() {
    let late = Unfinished { call: "seed f16 forward".into(), reason: "not reached".into() };
    let cases = vec![tuned(Direction::Forward, 0.0), tuned(Direction::Backward, 60.0)];
    let record = TuneRecord::new(&TestDevice, cases, vec![late]);
    let table = gaps_markdown(&record);
    let tried = format!(" % (5 of {}) | - | - |\n", record.cases[0].choices);
    assert!(table.contains("\nTime ran out in 1 of "), "{table}");
    assert!(table.contains(&tried), "{table}");
    assert!(table.contains("No result: seed f16 forward (not reached).\n"), "{table}");
    let whole = TuneRecord::new(&TestDevice, vec![tuned(Direction::Forward, 60.0)], Vec::new());
    assert!(!gaps_markdown(&whole).contains("Time ran out"));
}
