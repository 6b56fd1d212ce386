//! Every reader of files, as a function over bytes that panics if something is wrong.
//!
//! `cargo xtask fuzz` gives them to libFuzzer (`libfuzzer/`). In every test run `tests/seeds.rs` gives them the files of
//! `seeds/`, which include what was found before, and a fixed set of mutations.

mod files;
mod onnx;
mod problem;
mod records;

/// A reader of files.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its binary in `libfuzzer/` and of its folder in `seeds/`.
    pub name: &'static str,
    /// What it reads.
    pub what: &'static str,
    /// Reads bytes; panics if the reader has a fault.
    pub run: fn(&[u8]),
}

/// All readers.
pub const TARGETS: [Target; 12] = [
    Target { name: "safetensors", what: "a .safetensors file for `run`", run: files::safetensors },
    Target { name: "npy", what: ".npy files for `run`", run: files::npy },
    Target { name: "bin", what: "raw files for `run`, with sizes", run: files::bin },
    Target { name: "problem", what: "the description of a call", run: problem::problem },
    Target { name: "workload", what: "a workload file", run: records::workload },
    Target { name: "tuning", what: "a tuning file", run: records::tuning },
    Target { name: "cubin", what: "an entry of the cubin cache", run: records::cubin },
    Target { name: "pack", what: "a kernel pack", run: records::pack },
    Target { name: "ledger", what: "a verification ledger", run: records::ledger },
    Target { name: "record", what: "a record and what is drawn from it", run: records::record },
    Target { name: "onnx", what: "an ONNX model, read, searched and rewritten", run: onnx::onnx },
    Target { name: "counters", what: "a table of Nsight Compute", run: records::counters },
];

/// Runs a target by its name.
///
/// # Panics
/// If there is no such target, and where the target does.
#[allow(clippy::panic, reason = "a fuzz target that is misspelt must not pass")]
pub fn run(name: &str, bytes: &[u8]) {
    match TARGETS.iter().find(|target| target.name == name) {
        Some(target) => (target.run)(bytes),
        None => panic!("there is no target `{name}`"),
    }
}

/// Takes numbers off the front of the bytes; zeros once they are used up.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn chance(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Mostly small, sometimes of any size.
    fn number(&mut self) -> i64 {
        match self.byte() {
            small @ 0..=247 => i64::from(small % 8),
            248..=251 => i64::from(self.byte()) << 24,
            _ => i64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    fn size(&mut self) -> usize {
        usize::try_from(self.number()).unwrap_or(usize::MAX)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// The rest, cut into a number of pieces whose lengths come first.
    fn pieces(mut self, count: usize) -> Vec<&'a [u8]> {
        let lengths: Vec<usize> = (0..count)
            .map(|_| usize::from(u16::from_le_bytes([self.byte(), self.byte()])))
            .collect();
        lengths
            .into_iter()
            .map(|length| {
                let (piece, rest) = self.0.split_at(length.min(self.0.len()));
                self.0 = rest;
                piece
            })
            .collect()
    }
}
