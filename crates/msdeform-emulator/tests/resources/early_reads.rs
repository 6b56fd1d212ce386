//! Looks for zeros that are read before they are there.
//!
//! An instruction of fixed latency announces its result to nobody: the compiler must leave enough cycles until the
//! first reader. `CS2R Rn, SRZ`, its way to zero two registers at once, takes longer than ordinary arithmetic, and
//! NVRTC (12.9 to 13.4) forgets it where an instruction under a predicate overwrites the zero: it waits for that one,
//! and where the predicate is false the reader gets what the registers held before. On an H200 that was an illegal
//! memory access.

use super::listing::Instruction;

/// Cycles from a `CS2R` to its first reader, of the opcode [`is_slow_zero`] knows: the least that the compiler keeps
/// where nothing lies in between, over all kernels and architectures. The fault on the H200 had 5.
pub const LATENCY: u32 = 7;

/// A read that comes too early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyRead {
    /// Cycles after the producer.
    pub cycles: u32,
    /// From the producer to the reader.
    pub instructions: Vec<String>,
}

impl std::fmt::Display for EarlyRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "read after {} cycles: {}", self.cycles, self.instructions.join("; "))
    }
}

/// What was found about the producer that a run of instructions begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not one whose result is late.
    NotSlow,
    /// Read so many cycles later, or not at all where this looked.
    Read {
        after: Option<u32>,
    },
    Early(EarlyRead),
}

/// Follows the result of the first instruction through those that come after it, in the order they stand there: a branch
/// that is not taken costs nothing, and one that is costs more than the latency.
pub fn check(instructions: &[Instruction]) -> Verdict {
    let Some(mut pending) = instructions.first().and_then(slow_result) else {
        return Verdict::NotSlow;
    };
    let mut cycles = instructions[0].stall;
    for (index, instruction) in instructions.iter().enumerate().skip(1) {
        if reads(instruction, &pending) {
            if cycles >= LATENCY {
                return Verdict::Read { after: Some(cycles) };
            }
            let text = instructions[..=index].iter().map(Instruction::text);
            return Verdict::Early(EarlyRead { cycles, instructions: text.collect() });
        }
        if instruction.guard.is_empty() {
            pending.retain(|register| !written(instruction).contains(register));
        }
        if pending.is_empty() || leaves(instruction) {
            break;
        }
        cycles += instruction.stall;
    }
    Verdict::Read { after: None }
}

/// The registers of a result that takes longer than arithmetic and announces itself to nobody.
fn slow_result(instruction: &Instruction) -> Option<Vec<u32>> {
    let first = instruction.operands.first().and_then(|operand| register(operand))?;
    match instruction.opcode.as_str() {
        "CS2R" => Some(vec![first, first + 1]),
        "CS2R.32" => Some(vec![first]),
        _ => None,
    }
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

/// The register that an operand is, whatever is done with it: `-|R4|.reuse`.
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
