//! A part of the fuzzing in every test run: the seeds, which include what was found before, and a fixed set of mutations.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail, and helpers of tests too")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fuzz::{TARGETS, Target, target};
use msdeform_lab::Random;

/// Mutations of each seed.
const MUTATIONS: u64 = 300;

fn seeds(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target.name);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Changes a few bytes, repeats a part, cuts the end or puts a large number in.
fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 if !bytes.is_empty() => bytes[at] = random.bits() as u8,
            1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 => bytes.truncate(at),
            3 => {
                let end = (at + random.below(40)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let number = [&b"-1"[..], b"0", b"18446744073709551615", b"1e999", b"4294967296"];
                let number = number[random.below(number.len())];
                let end = (at + 1).min(bytes.len());
                bytes.splice(at..end, number.iter().copied());
            }
        }
    }
    bytes
}

#[test]
fn every_target_has_seeds_and_every_seed_has_a_target() {
    let folders = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds")).unwrap();
    let mut folders: Vec<String> =
        folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
    folders.sort();
    let mut names = TARGETS.map(|target| target.name);
    names.sort_unstable();
    // `tools/fuzz.sh --list` lists the folders.
    assert_eq!(folders, names);
    for target in TARGETS {
        assert!(!seeds(&target).is_empty(), "{} has no seeds", target.name);
    }
}

#[test]
fn seeds_and_their_mutations_are_read_or_refused() {
    std::thread::scope(|scope| {
        for target in &TARGETS {
            scope.spawn(move || {
                let mut random = Random::new(1);
                for (path, seed) in seeds(target) {
                    (target.run)(&seed);
                    for mutation in 0..MUTATIONS {
                        let bytes = mutated(&seed, &mut random);
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
    use msdeform_cli::from_bytes::{Kind, NAMES, SizeArgs, load};
    let makes_call = |bytes: &[u8], backward| {
        let file = vec![(NAMES[0], bytes.to_vec())];
        load(Kind::Safetensors, file, &SizeArgs::default(), backward)
    };
    let whole = seeds(&target("safetensors"));
    assert!(whole.iter().any(|(_, bytes)| makes_call(bytes, true)));
    // Declares terabytes of output in a few bytes: that is for the check of the memory, not for the files.
    let declared = whole.iter().find(|(path, _)| path.ends_with("terabytes_declared.safetensors"));
    assert!(makes_call(&declared.unwrap().1, false));
}

#[test]
fn random_calls_are_loaded_or_refused() {
    let mut random = Random::new(2);
    let calls = 6000;
    let loaded = (0..calls)
        .filter(|_| {
            let bytes: Vec<u8> = (0..120).map(|_| random.bits() as u8).collect();
            fuzz::makes_call(&bytes)
        })
        .count();
    assert!((calls / 20..calls * 19 / 20).contains(&loaded), "{loaded} of {calls} are calls");
}
