//! One launch: steps, parameters, device memory.

/// The order in which the threads of a block, or the blocks of a grid, get their turns. It does not change the result
/// of a kernel that synchronises properly and adds up in a fixed order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Number 0 first.
    #[default]
    Ascending,
    /// Number 0 last: consumers tend to run before their producers.
    Descending,
    /// Another random but reproducible order every time.
    Shuffled,
}

impl Order {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ascending, Self::Descending, Self::Shuffled];
}

/// One allocation of device memory of an exact size: the byte after it is out of bounds.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Its contents before the launch.
    pub bytes: Vec<u8>,
    /// Whether the kernel may write to it, and its contents come back.
    pub written: bool,
    /// The distance of its start from an address that is aligned to 256 bytes, as device allocations are.
    pub offset: u32,
}

impl Buffer {
    /// Memory that the kernel may only read; a write is an error.
    #[must_use]
    pub fn input(bytes: Vec<u8>) -> Self {
        Self { bytes, written: false, offset: 0 }
    }

    /// Memory that the kernel fills; NaN in every dtype until then.
    #[must_use]
    pub fn output(len: usize) -> Self {
        Self { bytes: vec![0xFF; len], written: true, offset: 0 }
    }

    /// Memory that the kernel reads and writes.
    #[must_use]
    pub fn in_out(bytes: Vec<u8>) -> Self {
        Self { bytes, written: true, offset: 0 }
    }

    /// Moves the buffer `offset` bytes past an aligned address. The caller adds the offset to the placeholder in the
    /// parameters.
    #[must_use]
    pub fn misaligned_by(mut self, offset: u32) -> Self {
        self.offset = offset;
        self
    }
}

/// Upper 16 bits of a placeholder, which no address and no plausible pair of integers has.
const PLACEHOLDER: u64 = 0x7E57 << 48;
const INDEX_SHIFT: u32 = 40;
const OFFSET_MASK: u64 = (1 << INDEX_SHIFT) - 1;

/// Stands for the address of the buffer with this index in a launch's parameters. Offsets may be added
/// to it as to a pointer.
#[must_use]
pub const fn placeholder_address(buffer: u8) -> u64 {
    PLACEHOLDER | (buffer as u64) << INDEX_SHIFT
}

/// A step of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchStep {
    /// Runs a kernel.
    Kernel {
        /// Its position among [`crate::Specialisation::entries`].
        entry: usize,
        /// Blocks along x, y, z.
        grid: [u32; 3],
        /// Threads of a block along x, y, z.
        block: [u32; 3],
        /// Dynamic shared memory of a block.
        shared_bytes: usize,
    },
    /// Sets a part of a written buffer to zero.
    Zero {
        /// The buffer's position.
        buffer: u8,
        /// First byte.
        offset: usize,
        /// How many bytes.
        bytes: usize,
    },
}

/// Kernels, one after the other, that take the same structure of parameters.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The steps, in order.
    pub steps: Vec<LaunchStep>,
    /// Order of the threads' turns.
    pub order: Order,
    /// Order of the blocks' turns.
    pub block_order: Order,
    /// The bytes of the parameters, with a [`placeholder_address`] at each pointer into a buffer.
    pub params: Vec<u8>,
    /// Device memory.
    pub buffers: Vec<Buffer>,
}

impl Launch {
    /// A launch of the first kernel without buffers, in ascending order.
    #[must_use]
    pub fn new(grid: [u32; 3], block: [u32; 3], shared_bytes: usize, params: Vec<u8>) -> Self {
        let steps = vec![LaunchStep::Kernel { entry: 0, grid, block, shared_bytes }];
        Self { steps, params, ..Self::default() }
    }

    /// Where in the parameters there are placeholders: (position, buffer, offset into its bytes).
    pub(crate) fn pointers(&self) -> Vec<Pointer> {
        let words = self.params.chunks_exact(8).enumerate();
        words
            .filter_map(|(index, word)| {
                let word = u64::from_le_bytes(word.try_into().ok()?);
                let buffer = (word >> INDEX_SHIFT & 0xFF) as usize;
                let offset = u64::from(self.buffers.get(buffer)?.offset);
                (word >> 48 == PLACEHOLDER >> 48).then_some(Pointer {
                    position: index * 8,
                    buffer,
                    offset: (word & OFFSET_MASK).wrapping_sub(offset),
                })
            })
            .collect()
    }
}

/// A pointer inside the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub position: usize,
    pub buffer: usize,
    pub offset: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_found_and_other_numbers_are_not() {
        let words = [
            placeholder_address(1) + 12,
            0,
            u64::MAX,
            0x0000_7fff_ffff_ffff,
            placeholder_address(0) + 2,
        ];
        let params = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut launch = Launch::new([1; 3], [1; 3], 0, params);
        launch.buffers = vec![Buffer::output(8).misaligned_by(2), Buffer::output(8)];
        let expected = [
            Pointer { position: 0, buffer: 1, offset: 12 },
            Pointer { position: 32, buffer: 0, offset: 0 },
        ];
        assert_eq!(launch.pointers(), expected);
    }
}
