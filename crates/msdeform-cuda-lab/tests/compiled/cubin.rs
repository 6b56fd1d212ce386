//! The kernels of a cubin, as raw instructions: an ELF file with a section for each.

use super::early_reads::{LONGEST_LATENCY, is_slow_zero};
use super::listing::stall;

/// Bytes of an instruction, since Volta.
const INSTRUCTION: usize = 16;

/// The code of every kernel, by its name.
pub fn kernels(cubin: &[u8]) -> Option<Vec<(String, Vec<u128>)>> {
    let (table, count) = (word(cubin, 40)?, half(cubin, 60)?);
    let header = |index: usize| Some(table as usize + index * half(cubin, 58)?);
    let names = word(cubin, header(half(cubin, 62)?)? + 24)? as usize;
    let mut kernels = Vec::new();
    for index in 0..count {
        let header = header(index)?;
        let name_at = names + u32::from_le_bytes(bytes(cubin, header)?) as usize;
        let name = cubin.get(name_at..)?.split(|&byte| byte == 0).next()?;
        let Some(kernel) = std::str::from_utf8(name).ok()?.strip_prefix(".text.") else { continue };
        let (at, size) = (word(cubin, header + 24)? as usize, word(cubin, header + 32)? as usize);
        let code = cubin.get(at..at.checked_add(size)?)?.chunks_exact(INSTRUCTION);
        let code = code.filter_map(|chunk| Some(u128::from_le_bytes(chunk.try_into().ok()?)));
        kernels.push((kernel.to_owned(), code.collect()));
    }
    Some(kernels)
}

/// Code that may read too early: from every late zero on, for as long as its latency lasts.
pub fn windows(code: &[u128]) -> impl Iterator<Item = &[u128]> {
    let starts = (0..code.len()).filter(|&at| is_slow_zero(code[at]));
    starts.map(|start| {
        let (mut cycles, mut end) = (0, start);
        // A few more instructions, for the statistics.
        while end < code.len() && cycles < 2 * LONGEST_LATENCY {
            cycles += stall(code[end]);
            end += 1;
        }
        &code[start..(end + 1).min(code.len())]
    })
}

fn bytes<const N: usize>(file: &[u8], at: usize) -> Option<[u8; N]> {
    file.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn half(file: &[u8], at: usize) -> Option<usize> {
    bytes(file, at).map(|bytes| usize::from(u16::from_le_bytes(bytes)))
}

fn word(file: &[u8], at: usize) -> Option<u64> {
    bytes(file, at).map(u64::from_le_bytes)
}
