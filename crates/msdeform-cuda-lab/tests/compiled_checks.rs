//! The checks of `tests/compiled` themselves. NVRTC 13.0 compiled the listings of machine code that reads a zero too early
//! from kernels of this project, for an H200.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its shared functions"
)]

#[path = "compiled/early_reads.rs"]
mod early_reads;
#[path = "compiled/listing.rs"]
mod listing;
#[path = "compiled/table.rs"]
mod table;

use msdeform_cuda::nvrtc::KernelResources;
use msdeform_cuda::variants::Unit;

use early_reads::{FirstRead, LONGEST_LATENCY, first_read, is_late, is_slow_zero, latency};
use listing::{Instruction, parse, stall};
use table::{Key, Table, Verdict};

/// An instruction with a text and the cycles it waits.
fn instruction(text: &str, stall: u64) -> Instruction {
    let listing = format!("/*0000*/ {text} ; /* 0x0 */\n/* {:#x} */", stall << 41);
    parse(&listing).unwrap().remove(0)
}

fn read(code: &[(&str, u64)]) -> Option<FirstRead> {
    first_read(&code.iter().map(|(text, stall)| instruction(text, *stall)).collect::<Vec<_>>())
}

#[test]
fn what_crashed_on_an_h200_is_found() {
    let code = parse(include_str!("compiled/listings/early_product.sass")).unwrap();
    let found = first_read(&code).unwrap();
    assert!(found.is_overwritten && found.cycles == 5 && found.cycles < latency("sm_90a"));
    assert_eq!(found.instructions.len(), 3);
    assert_eq!(found.instructions[1], "@P1 IMAD.WIDE R4, R38, 0xa00, RZ");
}

#[test]
fn two_floats_that_share_a_zero_are_found() {
    let code = parse(include_str!("compiled/listings/early_float.sass")).unwrap();
    let found = first_read(&code).unwrap();
    assert!(found.is_overwritten && found.cycles == 6 && found.cycles < latency("sm_90a"));
}

#[test]
fn a_reader_that_waits_is_in_time() {
    let code = parse(include_str!("compiled/listings/in_time.sass")).unwrap();
    let found = first_read(&code).unwrap();
    assert!(!found.is_overwritten);
    assert_eq!(found.cycles, latency("sm_90a"));
    assert!(
        ["sm_80", "sm_100a", "sm_120a"]
            .map(latency)
            .iter()
            .all(|&cycles| cycles <= LONGEST_LATENCY)
    );
}

#[test]
fn control_bits_and_opcodes_are_decoded() {
    let cs2r = 0x000f_e400_0001_ff00_u128 << 64 | 0x0000_0000_0004_7805;
    assert!(is_slow_zero(cs2r));
    assert_eq!(stall(cs2r), 2);
    assert_eq!(stall(0x000f_d600_0001_ff00_u128 << 64), 11);
    assert_eq!(stall(0), 1, "an instruction takes a cycle");
}

#[test]
fn only_reads_of_the_zero_are_found() {
    let early = |reader: &str| {
        let found = read(&[("CS2R R4, SRZ", 1), ("NOP", 2), (reader, 1)]);
        found.is_some_and(|found| found.cycles == 3)
    };
    for reader in [
        "IADD3 R6, P1, R36, R4, RZ",
        "FADD R6, -|R5|, R7.reuse",
        "@!P0 LDG.E R8, desc[UR14][R4.64+0x100]",
        "STG.E.64 desc[UR4][R8.64], R4",
        "STS.128 [R9], R4",
        "HMMA.16816.F32 R12, R4, R8, R12",
        "HMMA.16816.F32 R12, R16, R4, R12",
        "IMAD.WIDE R10, R8, 0x10, R4",
    ] {
        assert!(early(reader), "{reader}");
    }
    for other in [
        "IADD3 R4, P1, R36, R6, RZ",
        "IADD3 R6, R14, R40, UR4",
        "LDG.E R4, desc[UR4][R8.64]",
        "HMMA.16816.F32 R12, R8, R6, R12",
        "STG.E.128 desc[UR4][R6.64], R8",
        "ULDC.64 UR4, c[0x0][0x208]",
    ] {
        assert!(!early(other), "{other}");
    }
    let single = [("CS2R.32 R4, SR_CLOCKLO", 1), ("IADD3 R6, R5, R7, RZ", 1)];
    assert_eq!(read(&single), None);
}

#[test]
fn a_certain_overwrite_ends_the_search() {
    let reader = ("IADD3 R6, R4, R7, RZ", 1);
    let zero = ("CS2R R4, SRZ", 1);
    let found = read(&[zero, ("@P1 IMAD.WIDE R4, R8, 0x10, RZ", 4), reader]).unwrap();
    assert!(found.is_overwritten && found.cycles == 5);
    assert_eq!(read(&[zero, ("IMAD.WIDE R4, R8, 0x10, RZ", 4), reader]), None);
    assert_eq!(read(&[zero, ("MOV R4, R8", 4), reader]), None);
    let half = read(&[zero, ("MOV R5, R8", 4), reader]).unwrap();
    assert!(!half.is_overwritten, "only the other half");
    assert_eq!(read(&[zero, ("BRA 0x200", 1), reader]), None);
    assert!(read(&[zero, ("@P0 BRA 0x200", 1), reader]).is_some());
    assert!(is_late(&instruction(zero.0, 1)) && !is_late(&instruction("MOV R4, RZ", 1)));
}

#[test]
fn reads_under_another_predicate_are_ignored() {
    let zero = ("@P0 CS2R R4, SRZ", 1);
    assert_eq!(read(&[zero, ("@P1 MOV R6, R4", 1)]), None);
    assert!(read(&[zero, ("@P0 MOV R6, R4", 1)]).is_some());
    assert!(read(&[zero, ("MOV R6, R4", 1)]).is_some());
}

// ---- the table of resources ----

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
