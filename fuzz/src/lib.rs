//! Every reader of files, as a function over bytes that panics if something is wrong.
//!
//! `cargo xtask fuzz` gives them to libFuzzer (`libfuzzer.rs`). In every test run `tests/seeds.rs` gives them the files of
//! `seeds/`, which include what was found before, and a fixed set of mutations.

#![allow(missing_docs, reason = "not published")]

mod files;
mod onnx;
mod problem;
mod records;

pub use files::makes_call;

/// A reader of files.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Also that of its folder in `seeds/`.
    pub name: &'static str,
    /// Reads bytes; panics if the reader has a fault.
    pub run: fn(&[u8]),
}

pub const TARGETS: [Target; 13] = [
    Target { name: "safetensors", run: files::safetensors },
    Target { name: "npy", run: files::npy },
    Target { name: "bin", run: files::bin },
    Target { name: "call", run: files::call },
    Target { name: "problem", run: problem::problem },
    Target { name: "workload", run: records::workload },
    Target { name: "tuning", run: records::tuning },
    Target { name: "cubin", run: records::cubin },
    Target { name: "pack", run: records::pack },
    Target { name: "ledger", run: records::ledger },
    Target { name: "record", run: records::record },
    Target { name: "onnx", run: onnx::onnx },
    Target { name: "counters", run: records::counters },
];

/// The target of a name.
///
/// # Panics
/// If there is none.
#[must_use]
#[allow(clippy::panic, reason = "a fuzz target that is misspelt must not pass")]
pub fn target(name: &str) -> Target {
    let found = TARGETS.into_iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("there is no target `{name}`"))
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

    fn rarely(&mut self) -> bool {
        self.byte() % 32 == 31
    }

    /// The usual value, or rarely another.
    fn instead<T>(&mut self, usual: Option<T>, other: fn(&mut Self) -> T) -> Option<T> {
        if self.rarely() { Some(other(self)) } else { usual }
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
