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
    /// At least `len` floats: those that are there with their contents, or new ones that are zero.
    pub(crate) fn reserve(&mut self, len: usize) -> Result<*mut f32, NoScratch> {
        grow(&mut self.lines, len.div_ceil(16), Line([0.0; 16]))?;
        Ok(self.lines.as_mut_ptr().cast())
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.lines.as_slice())
    }
}

/// Memory that the system does not give: the size of a level decides how much is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoScratch {
    pub bytes: usize,
}

/// Makes a list `len` long, of `zero` alone, unless it is that long already.
pub(crate) fn grow<T: Clone>(list: &mut Vec<T>, len: usize, zero: T) -> Result<(), NoScratch> {
    if list.len() < len {
        // The old one first: both together may be too much where the new one is not.
        *list = Vec::new();
        let bytes = len.saturating_mul(size_of::<T>());
        list.try_reserve_exact(len).map_err(|_| NoScratch { bytes })?;
        list.resize(len, zero);
    }
    Ok(())
}

/// What one worker thread keeps.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// One head's values as `f32`, every level framed by a border of zeros. Only pixels are ever
    /// written, so the border stays zero from the allocation on.
    pub value_scratch: AlignedFloats,
    /// The image and head that the scratch holds in a forward call.
    pub staged_head: Option<usize>,
    /// One head's gradient sums, framed likewise; what lands in the border is dropped. All zero
    /// between tasks.
    pub grad_scratch: AlignedFloats,
    /// One byte per row of the gradient scratch that has been added to. All zero between tasks.
    pub marks: Vec<u8>,
    /// Sums of a query whose samples do not fit into one piece.
    pub sums: AlignedFloats,
    /// Weights and references of the row at hand, of calls from offsets.
    pub row: AlignedFloats,
}

impl Workspace {
    /// Another call begins: its values are others.
    pub(crate) fn forget_values(&mut self) {
        self.staged_head = None;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.value_scratch.bytes()
            + self.grad_scratch.bytes()
            + self.sums.bytes()
            + self.row.bytes()
            + self.marks.len()
    }
}
