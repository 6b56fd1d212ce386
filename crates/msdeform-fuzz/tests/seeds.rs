//! A slice of the fuzzing in every test run: the seeds as they are, what was found with them before, and mutations of
//! both that are the same everywhere.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail, and helpers of tests too")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use msdeform_fuzz::{TARGETS, Target};

/// Mutations of each seed.
const MUTATIONS: u64 = 300;

fn seeds(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target.name);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Numbers that are the same on every machine (`SplitMix64`).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }
}

/// Changes a few bytes, repeats a part, cuts the end or puts a large number in.
fn mutated(seed: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(bytes.len());
        match numbers.below(5) {
            0 if !bytes.is_empty() => bytes[at] = numbers.next() as u8,
            1 if !bytes.is_empty() => bytes[at] ^= 1 << numbers.below(8),
            2 => bytes.truncate(at),
            3 => {
                let end = (at + numbers.below(40)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let number = [&b"-1"[..], b"0", b"18446744073709551615", b"1e999", b"4294967296"];
                let number = number[numbers.below(number.len())];
                let end = (at + 1).min(bytes.len());
                bytes.splice(at..end, number.iter().copied());
            }
        }
    }
    bytes
}

#[test]
fn every_target_has_seeds_and_a_fuzz_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for target in TARGETS {
        assert!(!seeds(&target).is_empty(), "{} has no seeds", target.name);
        let name = format!("name = \"{}\"", target.name);
        assert!(manifest.contains(&name), "fuzz/Cargo.toml lacks {}", target.name);
        let source = fuzz.join(format!("fuzz_targets/{}.rs", target.name));
        let call = format!("run(\"{}\", bytes)", target.name);
        assert!(std::fs::read_to_string(source).unwrap().contains(&call), "{}", target.name);
    }
}

#[test]
fn seeds_and_their_mutations_are_read_or_refused() {
    std::thread::scope(|scope| {
        for target in &TARGETS {
            scope.spawn(move || {
                let mut numbers = Numbers(1);
                for (path, seed) in seeds(target) {
                    (target.run)(&seed);
                    for mutation in 0..MUTATIONS {
                        let bytes = mutated(&seed, &mut numbers);
                        let done = catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes)));
                        assert!(
                            done.is_ok(),
                            "{}, mutation {mutation}: {}",
                            path.display(),
                            String::from_utf8_lossy(&bytes)
                        );
                    }
                }
            });
        }
    });
}

/// Seeds are not only refused: each kind of file has one that is read to its end.
#[test]
fn tensor_seeds_make_calls() {
    use msdeform_cli::fuzzing::{Files, load};
    let target = |name| TARGETS.into_iter().find(|target| target.name == name).unwrap();
    let whole = seeds(&target("safetensors"));
    assert!(whole.iter().any(|(_, bytes)| load(Files::Safetensors, vec![bytes.clone()], true)));
    // Declares terabytes of output in a few bytes: that is for the check of the memory, not for the files.
    let declared = whole.iter().find(|(path, _)| path.ends_with("terabytes_declared.safetensors"));
    assert!(load(Files::Safetensors, vec![declared.unwrap().1.clone()], false));
}
