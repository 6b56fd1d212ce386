//! Finds zeros that are read before they are written.
//!
//! An instruction of fixed latency does not announce its result, so the compiler must leave enough cycles until the
//! first reader. `CS2R Rn, SRZ`, which zeroes two registers at once, takes longer than ordinary arithmetic. NVRTC (12.9
//! to 13.4) forgets this if an instruction under a predicate overwrites the zero: the code only waits for that
//! instruction, and if the predicate is false, the reader gets the old contents of the registers. On an H200 this was
//! an illegal memory access.

use super::listing::Instruction;

/// Least cycles from a `CS2R` to its first reader if nothing overwrites the result in between, over all kernels and
/// compilers of the test, which prints it. The fault on the H200 had 5.
pub fn latency(arch: &str) -> u32 {
    match arch {
        "sm_80" | "sm_89" => 6,
        "sm_90a" => 7,
        "sm_100a" => 11,
        _ => LONGEST_LATENCY,
    }
}

/// The longest latency of all architectures.
pub const LONGEST_LATENCY: u32 = 12;

/// The first read of a result that is late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstRead {
    /// Cycles after the producer.
    pub cycles: u32,
    /// Whether an instruction under a predicate overwrites the result in between.
    pub is_overwritten: bool,
    /// From the producer to the reader.
    pub instructions: Vec<String>,
}

impl std::fmt::Display for FirstRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "read after {} cycles: {}", self.cycles, self.instructions.join("; "))
    }
}

/// Follows the result of the first instruction through the next ones, in the order of the listing: a branch that is not
/// taken costs nothing, and a taken one costs more than the latency. `None` if the first instruction has no late
/// result, or no instruction here reads it.
pub fn first_read(instructions: &[Instruction]) -> Option<FirstRead> {
    let producer = instructions.first()?;
    let mut pending = slow_result(producer)?;
    let (mut cycles, mut is_overwritten) = (producer.stall, false);
    for (index, instruction) in instructions.iter().enumerate().skip(1) {
        if reads(instruction, &pending) && may_meet(producer, instruction) {
            let text = instructions[..=index].iter().map(Instruction::text).collect();
            return Some(FirstRead { cycles, is_overwritten, instructions: text });
        }
        let written = written(instruction);
        if instruction.guard.is_empty() {
            pending.retain(|register| !written.contains(register));
        } else {
            is_overwritten |= pending.iter().any(|register| written.contains(register));
        }
        if pending.is_empty() || leaves(instruction) {
            return None;
        }
        cycles += instruction.stall;
    }
    None
}

/// Whether both instructions may execute. Two different predicates may be opposites.
fn may_meet(producer: &Instruction, reader: &Instruction) -> bool {
    producer.guard.is_empty() || reader.guard.is_empty() || producer.guard == reader.guard
}

/// The registers of a result that takes longer than arithmetic and is not announced.
fn slow_result(instruction: &Instruction) -> Option<Vec<u32>> {
    let first = instruction.operands.first().and_then(|operand| register(operand))?;
    match instruction.opcode.as_str() {
        "CS2R" => Some(vec![first, first + 1]),
        "CS2R.32" => Some(vec![first]),
        _ => None,
    }
}

/// Whether an instruction has such a result.
pub fn is_late(instruction: &Instruction) -> bool {
    slow_result(instruction).is_some()
}

/// Whether an encoding is of [`slow_result`]'s opcode.
pub const fn is_slow_zero(encoding: u128) -> bool {
    encoding & 0xfff == 0x805
}

/// Whether control never reaches the next instruction.
fn leaves(instruction: &Instruction) -> bool {
    let opcode = instruction.opcode.split('.').next().unwrap_or_default();
    instruction.guard.is_empty()
        && matches!(opcode, "BRA" | "BRX" | "JMP" | "JMX" | "RET" | "EXIT" | "CALL" | "BREAK")
}

/// Whether the first operand is a register that is written.
fn has_result(instruction: &Instruction) -> bool {
    const WITHOUT: [&str; 12] =
        ["ST", "STG", "STS", "STL", "RED", "REDG", "BRA", "BRX", "RET", "SYNCS", "LDGSTS", "CALL"];
    let opcode = instruction.opcode.split('.').next().unwrap_or_default();
    !WITHOUT.contains(&opcode)
}

/// The registers that are surely written.
fn written(instruction: &Instruction) -> Vec<u32> {
    let first = instruction.operands.first().filter(|_| has_result(instruction));
    let Some(first) = first.and_then(|operand| register(operand)) else { return Vec::new() };
    let opcode = &instruction.opcode;
    let count = match opcode {
        _ if opcode.contains(".128") || is_matrix_product(opcode) => 4,
        _ if opcode.contains(".64") || opcode.contains(".WIDE") || opcode == "CS2R" => 2,
        _ => 1,
    };
    (first..first + count).collect()
}

fn is_matrix_product(opcode: &str) -> bool {
    ["HMMA", "IMMA", "QMMA", "DMMA"].iter().any(|name| opcode.starts_with(name))
}

/// Whether one of the registers is read. Operands of several registers start at a multiple of their number; a zero of
/// two registers can be the second half of four.
fn reads(instruction: &Instruction, pending: &[u32]) -> bool {
    let opcode = &instruction.opcode;
    let result = usize::from(has_result(instruction));
    let sources = instruction.operands.iter().enumerate().skip(result);
    sources
        .flat_map(|(at, operand)| registers(operand).into_iter().map(move |r| (at, operand, r)))
        .any(|(at, operand, (first, is_pair))| {
            let count = match () {
                () if operand.contains('[') => 1 + u32::from(is_pair),
                // The right-hand side of a product is half as large as the others.
                () if is_matrix_product(opcode) => {
                    if at == 2 {
                        2
                    } else {
                        4
                    }
                }
                () if opcode.contains(".128") => 4,
                () if opcode.contains(".64") || opcode.contains(".WIDE") => 2,
                () => 1,
            };
            let first = first / count * count;
            (first..first + count).any(|register| pending.contains(&register))
        })
}

/// The register of an operand, without modifiers as in `-|R4|.reuse`.
fn register(operand: &str) -> Option<u32> {
    registers(operand).into_iter().next().map(|(register, _)| register)
}

/// The registers in an operand, as in `desc[UR14][R36.64+0x100]`, and whether each is the first of two.
fn registers(operand: &str) -> Vec<(u32, bool)> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = operand.as_bytes();
    let mut found = Vec::new();
    for (at, _) in operand.match_indices('R') {
        let follows_word = at > 0 && is_word(bytes[at - 1]);
        let rest = &operand[at + 1..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if follows_word || digits == 0 || rest.as_bytes().get(digits).copied().is_some_and(is_word)
        {
            continue;
        }
        if let Ok(number) = rest[..digits].parse() {
            found.push((number, rest[digits..].starts_with(".64")));
        }
    }
    found
}
