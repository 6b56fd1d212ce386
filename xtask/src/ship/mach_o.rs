//! What a library of macOS says about itself: its load commands, as the system reads them before it maps anything.

use anyhow::{Context, Result, ensure};

/// A 64-bit library.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Library {
    /// The processor, as Rust calls it.
    pub processor: &'static str,
    /// The oldest macOS that loads it, major and minor.
    pub oldest_system: (u32, u32),
    /// Paths of the libraries that it needs.
    pub needs: Vec<String>,
    /// Names that it takes from whatever the process has loaded, and not from one of these.
    pub from_anywhere: Vec<String>,
    /// Where its signature lies in the file. The system ends a process on ARM that maps a page without one.
    pub signature: Option<std::ops::Range<usize>>,
}

const MAGIC: u32 = 0xfeed_facf;
const HEADER_BYTES: usize = 32;
const DYNAMIC_LIBRARY: u32 = 6;
const BUNDLE: u32 = 8;

// Load commands.
const SYMBOLS: u32 = 2;
const LOAD: u32 = 0xc;
const LOAD_WEAK: u32 = 0x8000_0018;
const RE_EXPORT: u32 = 0x8000_001f;
const CODE_SIGNATURE: u32 = 0x1d;
const VERSION_MIN_MACOSX: u32 = 0x24;
const BUILD_VERSION: u32 = 0x32;

impl Library {
    /// Reads the header and the load commands of a file.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let word = |at: usize| word(bytes, at);
        ensure!(word(0)? == MAGIC, "it is no 64-bit file of macOS");
        let kind = word(12)?;
        ensure!(kind == DYNAMIC_LIBRARY || kind == BUNDLE, "it is no library, but of kind {kind}");
        let processor = match word(4)? {
            0x0100_0007 => "x86_64",
            0x0100_000c => "aarch64",
            other => anyhow::bail!("it is for the processor {other:#x}"),
        };
        let mut library = Self { processor, ..Self::default() };
        let mut at = HEADER_BYTES;
        for _ in 0..word(16)? {
            let size = word(at + 4)? as usize;
            ensure!(size >= 8, "a load command without a size");
            match word(at)? {
                LOAD | LOAD_WEAK | RE_EXPORT => {
                    let name = at + word(at + 8)? as usize;
                    let name =
                        bytes.get(name..at + size).context("a name outside of its command")?;
                    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                    library.needs.push(String::from_utf8_lossy(name).into_owned());
                }
                SYMBOLS => {
                    let [symbols, count, names] = [8, 12, 16].map(|field| word(at + field));
                    library.from_anywhere = from_anywhere(bytes, symbols?, count?, names?)?;
                }
                VERSION_MIN_MACOSX => library.oldest_system = version(word(at + 8)?),
                BUILD_VERSION => library.oldest_system = version(word(at + 12)?),
                CODE_SIGNATURE => {
                    let start = word(at + 8)? as usize;
                    let end = start + word(at + 12)? as usize;
                    ensure!(end <= bytes.len(), "its signature lies outside of the file");
                    library.signature = Some(start..end);
                }
                _ => {}
            }
            at += size;
        }
        Ok(library)
    }
}

/// Undefined symbols of a table that no library is named for. Apple's linker says so by one number, Zig's by another.
fn from_anywhere(bytes: &[u8], symbols: u32, count: u32, names: u32) -> Result<Vec<String>> {
    const SYMBOL_BYTES: usize = 16;
    const UNDEFINED: u8 = 0;
    const KIND: u8 = 0xe;
    const EXTERNAL: u8 = 1;
    let mut found = Vec::new();
    for symbol in 0..count as usize {
        let at = symbols as usize + symbol * SYMBOL_BYTES;
        let (name, rest) = (word(bytes, at)?, word(bytes, at + 4)?.to_le_bytes());
        let [kind, _, _, library] = rest;
        if kind & KIND == UNDEFINED && kind & EXTERNAL != 0 && matches!(library, 0 | 0xfe) {
            let name = bytes.get(names as usize + name as usize..).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            found.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(found)
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let four = bytes.get(at..).and_then(<[u8]>::first_chunk).context("the file ends early")?;
    Ok(u32::from_le_bytes(*four))
}

/// Packed as 16 bits, 8 bits and 8 bits.
const fn version(packed: u32) -> (u32, u32) {
    (packed >> 16, (packed >> 8) & 0xff)
}

/// Whether a name is Python's, which is in the process that loads the library.
pub fn is_of_python(name: &str) -> bool {
    name.starts_with("_Py") || name.starts_with("__Py")
}

/// Whether every macOS has a library: Python brings none, it is found in the process.
pub fn is_part_of_macos(path: &str) -> bool {
    path.starts_with("/usr/lib/") || path.starts_with("/System/Library/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(processor: u32, kind: u32, commands: &[Vec<u8>]) -> Vec<u8> {
        let header = [MAGIC, processor, 0, kind, commands.len() as u32, 0, 0, 0];
        let mut bytes = header.map(u32::to_le_bytes).concat();
        bytes.extend(commands.iter().flatten());
        bytes
    }

    fn command(words: &[u32], text: &str) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(text.bytes());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let size = (bytes.len() as u32).to_le_bytes();
        bytes[4..8].copy_from_slice(&size);
        bytes
    }

    #[test]
    fn a_library_says_its_processor_its_system_and_what_it_needs() {
        let commands = [
            command(&[LOAD, 0, 24, 0, 0, 0], "/usr/lib/libSystem.B.dylib\0"),
            command(&[BUILD_VERSION, 0, 1, 0x000b_0100, 0, 0], ""),
            command(&[CODE_SIGNATURE, 0, 32, 16], ""),
        ];
        let library = Library::read(&file(0x0100_000c, 6, &commands)).unwrap();
        assert_eq!((library.processor, library.oldest_system), ("aarch64", (11, 1)));
        assert_eq!(library.needs, ["/usr/lib/libSystem.B.dylib"]);
        assert_eq!(library.signature, Some(32..48));
        let old = file(0x0100_0007, 8, &[command(&[VERSION_MIN_MACOSX, 0, 0x000a_0c00, 0], "")]);
        let old = Library::read(&old).unwrap();
        assert_eq!((old.processor, old.oldest_system, old.signature), ("x86_64", (10, 12), None));
    }

    #[test]
    fn names_without_a_library_are_found() {
        // Where the names lie, after the header and the one command.
        let (symbols, names) = (HEADER_BYTES as u32 + 24, HEADER_BYTES as u32 + 24 + 3 * 16);
        let mut bytes = file(0x0100_000c, 6, &[command(&[SYMBOLS, 0, symbols, 3, names, 64], "")]);
        for (name, kind, library) in [(1u32, 1u32, 2u32), (4, 1, 0), (10, 0xf, 0)] {
            let words = [name, kind | library << 24, 0, 0];
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes.extend(b"\0_a\0_PyOk\0_defined\0");
        assert_eq!(Library::read(&bytes).unwrap().from_anywhere, ["_PyOk"]);
        assert!(is_of_python("_PyOk") && is_of_python("__Py_NoneStruct"));
        assert!(!is_of_python("_CFRelease"));
        bytes.truncate(names as usize - 16);
        assert!(Library::read(&bytes).is_err());
    }

    #[test]
    fn what_is_none_or_ends_early_is_refused() {
        assert!(Library::read(b"\x7fELF").is_err());
        assert!(Library::read(&file(0x0100_0007, 2, &[])).is_err(), "a program");
        assert!(Library::read(&file(0x0200_000c, 6, &[])).is_err(), "another processor");
        let whole = file(0x0100_000c, 6, &[command(&[LOAD, 0, 24, 0, 0, 0], "/usr/lib/x\0")]);
        assert!(Library::read(&whole).is_ok());
        assert!(Library::read(&whole[..whole.len() - 8]).is_err());
        let outside = file(0x0100_000c, 6, &[command(&[CODE_SIGNATURE, 0, 32, 4096], "")]);
        assert!(Library::read(&outside).is_err());
    }

    #[test]
    fn libraries_of_somebody_else_are_told_from_those_of_macos() {
        assert!(is_part_of_macos("/usr/lib/libiconv.2.dylib"));
        assert!(is_part_of_macos("/System/Library/Frameworks/IOKit.framework/Versions/A/IOKit"));
        for other in ["@rpath/libpython3.12.dylib", "/opt/homebrew/lib/libunwind.dylib"] {
            assert!(!is_part_of_macos(other), "{other}");
        }
    }
}
