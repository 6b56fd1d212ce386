//! The check of `tests/resources` for machine code that reads a zero before it is written. NVRTC 13.0 compiled the
//! listings from kernels of this project for an H200.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its shared functions")]

#[path = "resources/early_reads.rs"]
mod early_reads;
#[path = "resources/listing.rs"]
mod listing;

use early_reads::{FirstRead, LONGEST_LATENCY, first_read, is_late, is_slow_zero, latency};
use listing::{Instruction, parse, stall};

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
    let code = parse(include_str!("resources/listings/early_product.sass")).unwrap();
    let found = first_read(&code).unwrap();
    assert!(found.is_overwritten && found.cycles == 5 && found.cycles < latency("sm_90a"));
    assert_eq!(found.instructions.len(), 3);
    assert_eq!(found.instructions[1], "@P1 IMAD.WIDE R4, R38, 0xa00, RZ");
}

#[test]
fn two_floats_that_share_a_zero_are_found() {
    let code = parse(include_str!("resources/listings/early_float.sass")).unwrap();
    let found = first_read(&code).unwrap();
    assert!(found.is_overwritten && found.cycles == 6 && found.cycles < latency("sm_90a"));
}

#[test]
fn a_reader_that_waits_is_in_time() {
    let code = parse(include_str!("resources/listings/in_time.sass")).unwrap();
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
