//! Machine code as the disassembler prints it: instructions with their encoding.

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// `@P1`, `@!UP0` or nothing.
    pub guard: String,
    /// With its suffixes, as in `IMAD.WIDE`.
    pub opcode: String,
    pub operands: Vec<String>,
    /// Cycles before the next instruction of the warp is issued.
    pub stall: u32,
}

impl Instruction {
    /// As it is printed.
    pub fn text(&self) -> String {
        let mut text = self.guard.clone();
        if !text.is_empty() {
            text.push(' ');
        }
        text + &self.opcode + " " + &self.operands.join(", ")
    }
}

/// The cycles that an encoding, 128 bits since Volta, asks to wait before the next instruction: bits 105 to 108.
/// An instruction takes one even if it asks for none.
pub const fn stall(encoding: u128) -> u32 {
    let stall = (encoding >> 105 & 0xf) as u32;
    if stall == 0 { 1 } else { stall }
}

/// Reads what `nvdisasm -hex` prints: an instruction and the lower half of its encoding on a line, the upper half on
/// the next.
pub fn parse(listing: &str) -> Result<Vec<Instruction>, String> {
    let mut instructions = Vec::new();
    let mut lines = listing.lines();
    while let Some(line) = lines.next() {
        let Some((text, low)) = instruction_line(line) else { continue };
        let high = lines.next().and_then(|next| hexadecimal(next.trim()));
        let high = high.ok_or_else(|| format!("no second half of the encoding of `{text}`"))?;
        let encoding = u128::from(high) << 64 | u128::from(low);
        instructions.push(instruction(text, stall(encoding)));
    }
    Ok(instructions)
}

/// `/*0010*/   TEXT ;   /* 0x0000000000087805 */`
fn instruction_line(line: &str) -> Option<(&str, u64)> {
    let (_, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    let (text, encoding) = rest.rsplit_once(';')?;
    Some((text.trim(), hexadecimal(encoding.trim())?))
}

/// `/* 0x0000000000087805 */`
fn hexadecimal(comment: &str) -> Option<u64> {
    let digits = comment.strip_prefix("/* 0x")?.strip_suffix("*/")?;
    u64::from_str_radix(digits.trim(), 16).ok()
}

fn instruction(text: &str, stall: u32) -> Instruction {
    let (guard, rest) = match text.split_once(' ') {
        Some((guard, rest)) if guard.starts_with('@') => (guard, rest.trim_start()),
        _ => ("", text),
    };
    let (opcode, operands) = rest.split_once(' ').unwrap_or((rest, ""));
    let operands = operands.split(',').map(|operand| operand.trim().to_owned());
    Instruction {
        guard: guard.to_owned(),
        opcode: opcode.to_owned(),
        operands: operands.filter(|operand| !operand.is_empty()).collect(),
        stall,
    }
}
