//! Memory that a plan keeps between calls.

/// Sixteen floats on their own cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(
    #[allow(dead_code, reason = "only reached through the pointer to the first line")] [f32; 16],
);

/// Floats aligned to a cache line, which is also the widest vector.
#[derive(Debug, Default)]
pub(crate) struct AlignedFloats {
    lines: Vec<Line>,
}

impl AlignedFloats {
    /// At least `len` floats; new ones are zero, old ones keep their contents.
    pub(crate) fn reserve(&mut self, len: usize) -> *mut f32 {
        let lines = len.div_ceil(16);
        if self.lines.len() < lines {
            // Not `resize`: fresh zeroed pages cost nothing until they are touched.
            self.lines = vec![Line([0.0; 16]); lines];
        }
        self.lines.as_mut_ptr().cast()
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.lines.as_slice())
    }
}

/// What one worker thread keeps.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// One head's values as `f32`, every level framed by a border of zeros. Only pixels are ever
    /// written, so the border stays zero from the allocation on.
    pub value_slab: AlignedFloats,
    /// One head's gradient sums, framed likewise; what lands in the border is dropped. All zero
    /// between tasks.
    pub grad_slab: AlignedFloats,
    /// One byte per row of the gradient slab that has been added to. All zero between tasks.
    pub marks: Vec<u8>,
    /// Sums of a query whose samples do not fit into one piece.
    pub sums: AlignedFloats,
}

impl Workspace {
    pub(crate) fn bytes(&self) -> usize {
        self.value_slab.bytes() + self.grad_slab.bytes() + self.sums.bytes() + self.marks.len()
    }
}
