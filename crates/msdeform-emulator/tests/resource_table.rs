//! The comparison of `tests/resources`: which changes are worse.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its shared functions"
)]

#[path = "resources/table.rs"]
mod table;

use msdeform_cuda::nvrtc::KernelResources;
use msdeform_cuda::variants::Unit;
use table::{Key, Table, Verdict};

const PLAIN: KernelResources = KernelResources {
    registers: 40,
    stack_bytes: 0,
    spill_store_bytes: 0,
    spill_load_bytes: 0,
    shared_bytes: 16,
};

fn key(variant: &str) -> Key {
    let defines = vec!["-DMSDA_LEVELS=4".into(), "-DMSDA_POINT_OFFSETS=0,4,8".into()];
    Key::new(variant, "sm_90a", &Unit { step: "", defines })
}

fn table(lines: &[(&str, KernelResources)]) -> Table {
    let lines = lines.iter().map(|(variant, resources)| (key(variant), *resources)).collect();
    Table::new("13.4".to_owned(), lines)
}

fn compared(found: &Table, committed: &Table) -> (usize, usize, Vec<String>) {
    match found.compare(committed) {
        Verdict::Compared { same, better, worse } => (same, better, worse),
        Verdict::OtherCompiler { recorded } => panic!("compilers differ: {recorded}"),
    }
}

#[test]
fn a_written_table_reads_back() {
    let written = table(&[("b", PLAIN), ("a", KernelResources { registers: 7, ..PLAIN })]);
    let text = written.to_string();
    let read = Table::parse(&text).unwrap();
    assert_eq!(compared(&read, &written), (2, 0, vec![]));
    assert_eq!(read.len(), 2);
    assert!(text.contains("\na,sm_90a,LEVELS=4 POINT_OFFSETS=0:4:8,7,0,0,0,16\nb,"), "{text}");
    assert!(Table::parse("a,sm_90a,LEVELS=4,7").is_err_and(|error| error.contains("csv:1")));
}

#[test]
fn more_of_any_resource_is_worse() {
    let committed = table(&[("a", PLAIN)]);
    let fewer = table(&[("a", KernelResources { registers: 39, ..PLAIN })]);
    assert_eq!(compared(&fewer, &committed), (0, 1, vec![]));
    // Fewer registers bought with spills are no improvement.
    let spilled = table(&[("a", KernelResources { registers: 32, spill_load_bytes: 8, ..PLAIN })]);
    let (same, better, worse) = compared(&spilled, &committed);
    assert_eq!((same, better, worse.len()), (0, 0, 1));
    assert!(worse[0].contains("0 -> 8 bytes of spill loads"), "{worse:?}");
}

#[test]
fn new_and_vanished_kernels_are_reported() {
    let (_, _, worse) = compared(&table(&[("new", PLAIN)]), &table(&[("old", PLAIN)]));
    assert!(worse[0].contains("new for sm_90a") && worse[0].contains("not in the table"));
    assert!(worse[1].contains("old for sm_90a") && worse[1].contains("gone"));
    // An empty table counts as a missing one, for every compiler.
    let (_, _, worse) = compared(&table(&[("new", PLAIN)]), &Table::parse("").unwrap());
    assert_eq!(worse.len(), 1);
}

#[test]
fn numbers_of_another_compiler_are_not_compared() {
    let other = Table::new("13.3".to_owned(), vec![(key("a"), PLAIN)]);
    let verdict = table(&[("a", PLAIN)]).compare(&other);
    assert!(matches!(verdict, Verdict::OtherCompiler { recorded } if recorded == "13.3"));
}
