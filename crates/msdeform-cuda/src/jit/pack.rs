//! Kernel packs: cubins of the shapes that people run, made ahead, in one file. With one, common models need no compiler.
//!
//! Kernels lie in groups that are compressed as a whole: those of one architecture and format are much alike, and
//! together take a quarter of what they take one by one. A kernel is known by a hash of its sources and options
//! ([`Recipe::content`](super::Recipe::content)), not of the compiler: a pack is as good for a user with another NVRTC, or with none.
//!
//! ```text
//! magic  length of the index  hash of the index  index (JSON)  groups, one behind the other
//! ```
//!
//! A group is a sequence of entries as the cache has them, each behind its length. Nothing in a file is believed: lengths
//! have limits, index and groups have hashes, and what is wrong is said and passed over.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lzma_rust2::{Lzma2Options, Lzma2Reader, Lzma2Writer};
use serde::{Deserialize, Serialize};

use super::{Key, decode_entry, encode_entry};
use crate::CudaVersion;
use crate::nvrtc::Compiled;

/// The name of a pack in the Python package that brings one, below the folder of packages.
pub(super) const PACK_IN_PACKAGES: &str = "msdeform_kernels/kernels.pack";

/// Names the pack, or switches packs off.
pub(super) const PACK_VARIABLE: &str = "MSDEFORM_KERNEL_PACK";

const MAGIC: &[u8; 8] = b"msdapak1";
const HASH_BYTES: usize = 32;
const LENGTH_BYTES: usize = 8;
const INDEX_AT: usize = MAGIC.len() + LENGTH_BYTES + HASH_BYTES;

/// The most that is read of a pack: several times what one of all architectures takes.
const LIMIT_BYTES: u64 = 64 << 20;
/// The most that a group takes once it is unpacked.
const LIMIT_GROUP_BYTES: u64 = 64 << 20;
/// What the compressor looks back at: a whole group. Its tables are as large; Miri writes them an element at a time.
const DICTIONARY_BYTES: u32 = if cfg!(miri) { 1 << 12 } else { 1 << 24 };

/// A pack that was read.
#[derive(Debug)]
pub struct KernelPack {
    path: PathBuf,
    index: Index,
    /// Where the groups begin in `bytes`.
    groups_at: usize,
    bytes: Vec<u8>,
    /// By content: the group and the place in it.
    places: HashMap<Key, (usize, usize)>,
    /// Unpacked when the first kernel of a group is asked for; or the reason why it cannot be unpacked.
    unpacked: Vec<OnceLock<Result<Vec<Compiled>, String>>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Index {
    /// The version of msdeform it was made by, for people: what fits is known by hashes.
    msdeform: String,
    /// The compiler, which a driver must not be older than.
    nvrtc: [u32; 2],
    groups: Vec<Group>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Group {
    arch: String,
    bytes: u64,
    unpacked_bytes: u64,
    /// Of what is unpacked.
    hash: String,
    /// The contents, in order.
    kernels: Vec<String>,
}

/// Kernels that are compressed together.
#[derive(Clone, Debug)]
pub struct PackGroup {
    /// What they run on, as NVRTC names it.
    pub arch: String,
    /// By [`Recipe::content`](super::Recipe::content).
    pub kernels: Vec<(Key, Compiled)>,
}

impl KernelPack {
    /// Reads a pack.
    pub fn open(path: &Path) -> Result<Self, String> {
        let bytes = msdeform_files::read(path, LIMIT_BYTES).map_err(|error| error.to_string())?;
        Self::parse(path, bytes)
    }

    /// The pack that a file holds; `path` is for messages.
    pub fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self, String> {
        let damaged = |what: &str| format!("{}: {what}; install it again", path.display());
        if !bytes.starts_with(MAGIC) {
            return Err(format!("{}: is no kernel pack of this version", path.display()));
        }
        let number = bytes.get(MAGIC.len()..).and_then(<[u8]>::first_chunk::<LENGTH_BYTES>);
        let length = number.and_then(|number| usize::try_from(u64::from_le_bytes(*number)).ok());
        let groups_at = length.and_then(|length| INDEX_AT.checked_add(length));
        let index = groups_at.and_then(|end| bytes.get(INDEX_AT..end));
        let (Some(index), Some(groups_at)) = (index, groups_at) else {
            return Err(damaged("is cut short"));
        };
        if blake3::hash(index).as_bytes() != &bytes[INDEX_AT - HASH_BYTES..INDEX_AT] {
            return Err(damaged("its index is damaged"));
        }
        let index: Index =
            serde_json::from_slice(index).map_err(|error| damaged(&error.to_string()))?;
        let mut places = HashMap::new();
        let mut end = groups_at as u64;
        for (group, Group { bytes, unpacked_bytes, kernels, .. }) in index.groups.iter().enumerate()
        {
            end = end.checked_add(*bytes).ok_or_else(|| damaged("its sizes are impossible"))?;
            if *unpacked_bytes > LIMIT_GROUP_BYTES {
                return Err(damaged("a group is larger than any"));
            }
            for (place, kernel) in kernels.iter().enumerate() {
                let key = Key::from_hex(kernel).map_err(|_| damaged("a kernel has no name"))?;
                places.insert(key, (group, place));
            }
        }
        if end != bytes.len() as u64 {
            return Err(damaged("is cut short"));
        }
        let unpacked = index.groups.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { path: path.to_owned(), index, groups_at, bytes, places, unpacked })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What compiled it.
    pub const fn compiler(&self) -> CudaVersion {
        let [major, minor] = self.index.nvrtc;
        CudaVersion { major, minor }
    }

    /// How many kernels it has for an architecture such as `sm_90a`.
    pub(super) fn kernels_for(&self, arch: &str) -> usize {
        let groups = self.index.groups.iter().filter(|group| group.arch == arch);
        groups.map(|group| group.kernels.len()).sum()
    }

    /// The kernels it has, by content.
    pub fn contents(&self) -> impl Iterator<Item = &Key> {
        self.places.keys()
    }

    /// One line about it, without its place.
    pub fn summary(&self) -> String {
        let mut archs: Vec<&str> =
            self.index.groups.iter().map(|group| group.arch.as_str()).collect();
        archs.dedup();
        format!(
            "{} kernels of msdeform {} by NVRTC {} for {}",
            self.places.len(),
            self.index.msdeform,
            self.compiler(),
            archs.join(", ")
        )
    }

    /// A kernel by its content.
    pub fn find(&self, content: &Key) -> Result<Option<Compiled>, String> {
        let Some(&(group, place)) = self.places.get(content) else { return Ok(None) };
        let unpacked = self.unpacked[group].get_or_init(|| self.unpack(group));
        Ok(unpacked.as_ref().map_err(Clone::clone)?.get(place).cloned())
    }

    fn unpack(&self, group: usize) -> Result<Vec<Compiled>, String> {
        let before: u64 = self.index.groups[..group].iter().map(|group| group.bytes).sum();
        let Group { arch, bytes, unpacked_bytes, hash, kernels } = &self.index.groups[group];
        let damaged = || {
            format!("{}: its kernels for {arch} are damaged; install it again", self.path.display())
        };
        let start = self.groups_at + before as usize;
        let packed = self.bytes.get(start..start + *bytes as usize).ok_or_else(damaged)?;
        let mut unpacked = Vec::new();
        let reader = Lzma2Reader::new(packed, DICTIONARY_BYTES, None);
        let read = reader.take(*unpacked_bytes).read_to_end(&mut unpacked);
        if read.is_err() || blake3::hash(&unpacked).to_hex().as_str() != hash {
            return Err(damaged());
        }
        let mut rest = unpacked.as_slice();
        let entries = kernels.iter().map(|_| {
            let (length, behind) = rest.split_first_chunk::<LENGTH_BYTES>()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            let entry;
            (entry, rest) = behind.split_at_checked(length)?;
            decode_entry(entry)
        });
        entries.collect::<Option<Vec<_>>>().ok_or_else(damaged)
    }
}

/// The bytes of a pack.
pub fn encode_pack(compiler: CudaVersion, groups: &[PackGroup]) -> std::io::Result<Vec<u8>> {
    let (mut listed, mut packed) = (Vec::new(), Vec::new());
    for PackGroup { arch, kernels } in groups {
        let mut unpacked = Vec::new();
        for (_, compiled) in kernels {
            let entry = encode_entry(compiled);
            unpacked.extend_from_slice(&(entry.len() as u64).to_le_bytes());
            unpacked.extend_from_slice(&entry);
        }
        let mut options = Lzma2Options::with_preset(9);
        options.lzma_options.dict_size = DICTIONARY_BYTES;
        let mut writer = Lzma2Writer::new(Vec::new(), options);
        writer.write_all(&unpacked)?;
        let compressed = writer.finish()?;
        listed.push(Group {
            arch: arch.clone(),
            bytes: compressed.len() as u64,
            unpacked_bytes: unpacked.len() as u64,
            hash: blake3::hash(&unpacked).to_hex().to_string(),
            kernels: kernels.iter().map(|(key, _)| key.to_hex().to_string()).collect(),
        });
        packed.extend(compressed);
    }
    let index = serde_json::to_vec(&Index {
        msdeform: env!("CARGO_PKG_VERSION").to_owned(),
        nvrtc: [compiler.major, compiler.minor],
        groups: listed,
    })?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(index.len() as u64).to_le_bytes());
    bytes.extend_from_slice(blake3::hash(&index).as_bytes());
    bytes.extend(index);
    bytes.extend(packed);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPILER: CudaVersion = CudaVersion { major: 13, minor: 0 };

    fn kernel(byte: u8) -> (Key, Compiled) {
        let log = format!("log of {byte}");
        let length = if cfg!(miri) { 300 } else { 5000 };
        (blake3::hash(&[byte]), Compiled { cubin: vec![byte; length], log })
    }

    fn pack() -> Vec<u8> {
        let group = |arch: &str, kernels| PackGroup { arch: arch.to_owned(), kernels };
        let groups = [group("sm_80", vec![kernel(1), kernel(2)]), group("sm_90a", vec![kernel(3)])];
        encode_pack(COMPILER, &groups).unwrap()
    }

    fn parse(bytes: Vec<u8>) -> Result<KernelPack, String> {
        KernelPack::parse(Path::new("kernels.pack"), bytes)
    }

    #[test]
    #[cfg_attr(miri, ignore = "the decoder has assembly in it, which Miri cannot run")]
    fn what_was_packed_is_found_by_its_content_and_nothing_else_is() {
        let bytes = pack();
        assert!(bytes.len() < 2000, "{} bytes of 15000", bytes.len());
        let pack = parse(bytes).unwrap();
        for byte in 1..=3 {
            let (key, compiled) = kernel(byte);
            assert_eq!(pack.find(&key).unwrap(), Some(compiled));
        }
        assert_eq!(pack.find(&kernel(4).0).unwrap(), None);
        assert_eq!((pack.kernels_for("sm_80"), pack.kernels_for("sm_90")), (2, 0));
        assert_eq!(pack.compiler(), COMPILER);
        let words = pack.summary();
        assert!(words.contains("3 kernels") && words.contains("sm_80, sm_90a"), "{words}");
    }

    /// After damage to any one byte, the file or a group is refused, or every kernel is unchanged.
    #[test]
    #[cfg_attr(miri, ignore = "unpacks hundreds of files, which takes Miri minutes")]
    fn damage_is_said_and_never_believed() {
        let whole = pack();
        let mut refused = 0;
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= 0x10;
            let Ok(pack) = parse(damaged) else {
                refused += 1;
                continue;
            };
            for byte in 1..=3 {
                let (key, compiled) = kernel(byte);
                match pack.find(&key) {
                    Ok(found) => assert_eq!(found, Some(compiled), "byte {position}"),
                    Err(words) => assert!(words.contains("install it again"), "{words}"),
                }
            }
        }
        assert!(refused > 100, "the index is looked at");
        for length in [0, 7, MAGIC.len(), INDEX_AT, INDEX_AT + 5, whole.len() - 1] {
            assert!(parse(whole[..length].to_vec()).is_err(), "cut to {length}");
        }
        let mut longer = whole;
        longer.push(0);
        assert!(parse(longer).is_err());
    }
}
