//! Registers, spills and memory of a kernel, as ptxas prints them into the compiler's log.

/// What one thread or block of a kernel takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelResources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of stack of a thread, spills included.
    pub stack_bytes: u32,
    /// Bytes stored by spills.
    pub spill_store_bytes: u32,
    /// Bytes loaded by spills.
    pub spill_load_bytes: u32,
    /// Bytes of static shared memory of a block.
    pub shared_bytes: u32,
}

impl KernelResources {
    /// Reads the log of a compilation with `--ptxas-options=-v`; `None` if it does not mention the
    /// kernel.
    pub fn parse(log: &str, kernel: &str) -> Option<Self> {
        let start = log.find(&format!("entry function '{kernel}'"))?;
        let section = &log[start..];
        // Up to the next kernel of the same log.
        let end = section[1..].find("entry function '").map_or(section.len(), |next| next + 1);
        let section = &section[..end];
        let before = |words: &str| number_before(section, words);
        Some(Self {
            registers: before(" registers")?,
            stack_bytes: before(" bytes stack frame").unwrap_or(0),
            spill_store_bytes: before(" bytes spill stores").unwrap_or(0),
            spill_load_bytes: before(" bytes spill loads").unwrap_or(0),
            shared_bytes: before(" bytes smem").unwrap_or(0),
        })
    }
}

fn number_before(text: &str, words: &str) -> Option<u32> {
    let before = &text[..text.find(words)?];
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 52 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_120a'
ptxas info    : Function properties for first
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 48 registers, used 1 barriers, 2048 bytes smem, 8 bytes cumulative stack size
ptxas info    : Compiling entry function 'second' for 'sm_120a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 31 registers, used 0 barriers, 832 bytes cmem[0]
";

    #[test]
    fn each_kernel_gets_its_own_numbers() {
        let first = KernelResources {
            registers: 48,
            stack_bytes: 8,
            spill_store_bytes: 4,
            spill_load_bytes: 16,
            shared_bytes: 2048,
        };
        assert_eq!(KernelResources::parse(LOG, "first"), Some(first));
        let second = KernelResources { registers: 31, ..KernelResources::default() };
        assert_eq!(KernelResources::parse(LOG, "second"), Some(second));
        assert_eq!(KernelResources::parse(LOG, "third"), None);
    }
}
