//! Cubins on disk. Never a reason to fail: what cannot be read is compiled, what cannot be written is
//! not kept.
//!
//! An entry is one file named by its key. It is written under another name and renamed, so that a
//! reader, in this process or another, sees a whole entry or none; two writers of the same key write
//! the same bytes. A hash inside finds entries that a disk or a hand has damaged.
//!
//! Bounded: past [`LIMIT_BYTES`] the entries used least recently are removed until half is left. A
//! model needs a handful of entries of 10 to 60 KB, so this takes thousands of models or releases.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use msdeform_files::{Existing, Fault, FileError, is_temporary};

use super::{Key, PACK_IN_PACKAGES, PACK_VARIABLE};
use crate::nvrtc::Compiled;

/// What the folder may hold.
const LIMIT_BYTES: u64 = 256 << 20;

/// The most that is read of one entry: a hundred times the largest cubin.
const LIMIT_ENTRY_BYTES: u64 = 64 << 20;

const MAGIC: &[u8; 8] = b"msdacub1";
const HASH_BYTES: usize = 32;
const LOG_LENGTH_BYTES: usize = 8;
const HEADER_BYTES: usize = MAGIC.len() + HASH_BYTES + LOG_LENGTH_BYTES;

/// A folder of cubins, or none where no folder can be had, and perhaps a kernel pack that is asked first.
#[derive(Clone, Debug)]
pub struct DiskCache {
    folder: Option<PathBuf>,
    pack: Option<PathBuf>,
    limit_bytes: u64,
}

impl DiskCache {
    /// The user's cache folder; `MSDEFORM_CACHE_DIR` names another, and empty means none. With it the kernel pack that
    /// `MSDEFORM_KERNEL_PACK` names, or that is among the Python packages; `off` or empty uses none.
    #[must_use]
    pub fn of_user() -> Self {
        let folder = match std::env::var_os("MSDEFORM_CACHE_DIR") {
            Some(named) if named.is_empty() => None,
            Some(named) => Some(PathBuf::from(named)),
            None => directories::ProjectDirs::from("", "", "msdeform")
                .map(|folders| folders.cache_dir().join("cubin")),
        };
        let pack = match std::env::var_os(PACK_VARIABLE) {
            Some(named) if named.is_empty() || named == "off" => None,
            Some(named) => Some(PathBuf::from(named)),
            None => crate::nvrtc::in_packages(PACK_IN_PACKAGES),
        };
        Self { folder, pack, limit_bytes: LIMIT_BYTES }
    }

    /// A cache in a given folder, without a pack.
    #[must_use]
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), pack: None, limit_bytes: LIMIT_BYTES }
    }

    /// No cache: everything is compiled once per process.
    #[must_use]
    pub const fn nowhere() -> Self {
        Self { folder: None, pack: None, limit_bytes: LIMIT_BYTES }
    }

    /// The same with a kernel pack.
    #[must_use]
    pub fn with_pack(self, path: impl Into<PathBuf>) -> Self {
        Self { pack: Some(path.into()), ..self }
    }

    /// The kernel pack that is asked first, whether it can be read or not.
    #[must_use]
    pub fn pack(&self) -> Option<&Path> {
        self.pack.as_deref()
    }

    /// Where entries are kept, if anywhere.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The file of an entry, whether it exists or not.
    #[must_use]
    pub fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.cubin", key.to_hex())))
    }

    /// An entry, if there is a whole one. A damaged one is removed.
    #[must_use]
    pub fn load(&self, key: &Key) -> Option<Compiled> {
        let path = self.path(key)?;
        let bytes = match msdeform_files::read(&path, LIMIT_ENTRY_BYTES) {
            Err(FileError { fault: Fault::TooLarge(_), .. }) => Vec::new(),
            bytes => bytes.ok()?,
        };
        let entry = decode_entry(&bytes);
        if entry.is_none() {
            self.remove(key);
        } else if let Ok(file) = fs::File::options().read(true).write(cfg!(windows)).open(&path) {
            // An entry's age counts from its last use, or from its creation if the time of use cannot be stored. Windows
            // stores it only through a file that is open for writing.
            drop(file.set_modified(SystemTime::now()));
        }
        entry
    }

    /// Keeps an entry, if the folder can be written.
    pub fn store(&self, key: &Key, compiled: &Compiled) {
        drop(self.try_store(key, compiled));
    }

    /// The same as [`Self::store`], with the error.
    ///
    /// # Errors
    /// Why it is not kept. Without a folder nothing is, and that is no error.
    pub(super) fn try_store(&self, key: &Key, compiled: &Compiled) -> Result<(), FileError> {
        let Some(path) = self.path(key) else { return Ok(()) };
        msdeform_files::write(&path, &encode_entry(compiled), Existing::Replace)?;
        self.prune();
        Ok(())
    }

    /// Forgets an entry.
    pub fn remove(&self, key: &Key) {
        if let Some(path) = self.path(key) {
            drop(fs::remove_file(path));
        }
    }

    /// Removes the entries used least recently where there is too much.
    fn prune(&self) {
        let Some(entries) = self.folder.as_ref().and_then(|folder| fs::read_dir(folder).ok())
        else {
            return;
        };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok().filter(|entry| {
                    // Not ours to judge: its writer may be about to rename it.
                    !is_temporary(&entry.file_name().to_string_lossy())
                })?;
                let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
                Some((metadata.modified().ok()?, metadata.len(), entry.path()))
            })
            .collect();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        if total <= self.limit_bytes {
            return;
        }
        files.sort();
        for (_, bytes, path) in files {
            if total <= self.limit_bytes / 2 {
                break;
            }
            // Another process may have been faster.
            drop(fs::remove_file(path));
            total -= bytes;
        }
    }
}

/// Magic, hash of the rest, length of the log, log, cubin.
#[must_use]
pub fn encode_entry(compiled: &Compiled) -> Vec<u8> {
    let mut body = (compiled.log.len() as u64).to_le_bytes().to_vec();
    body.extend_from_slice(compiled.log.as_bytes());
    body.extend_from_slice(&compiled.cubin);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(blake3::hash(&body).as_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// The entry that a file of the cache holds, if it is a whole one.
#[must_use]
pub fn decode_entry(bytes: &[u8]) -> Option<Compiled> {
    if bytes.len() <= HEADER_BYTES || !bytes.starts_with(MAGIC) {
        return None;
    }
    let (hash, body) = bytes[MAGIC.len()..].split_at(HASH_BYTES);
    if blake3::hash(body).as_bytes() != hash {
        return None;
    }
    let (length, rest) = body.split_first_chunk::<LOG_LENGTH_BYTES>()?;
    let (log, cubin) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some(Compiled { cubin: cubin.to_vec(), log: String::from_utf8(log.to_vec()).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(byte: u8) -> Compiled {
        Compiled { cubin: vec![byte; 1000], log: format!("log of {byte}") }
    }

    fn key(byte: u8) -> Key {
        blake3::hash(&[byte])
    }

    #[test]
    fn what_was_stored_comes_back_and_leaves_no_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DiskCache::in_folder(folder.path().join("made/on/demand"));
        assert_eq!(cache.load(&key(1)), None);
        cache.store(&key(1), &entry(1));
        cache.store(&key(1), &entry(1));
        cache.store(&key(2), &entry(2));
        assert_eq!(cache.load(&key(1)), Some(entry(1)));
        assert_eq!(fs::read_dir(cache.folder().unwrap()).unwrap().count(), 2);
    }

    #[test]
    fn every_damaged_byte_is_noticed_and_the_entry_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DiskCache::in_folder(folder.path());
        let whole = encode_entry(&entry(7));
        let path = cache.path(&key(7)).unwrap();
        for position in (0..whole.len()).step_by(13) {
            let mut damaged = whole.clone();
            damaged[position] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(cache.load(&key(7)), None, "byte {position}");
            assert!(!path.exists());
        }
        for length in [0, 1, HEADER_BYTES, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(cache.load(&key(7)), None, "cut to {length}");
        }
        cache.store(&key(7), &entry(7));
        assert_eq!(cache.load(&key(7)), Some(entry(7)));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_cache_and_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        let cache = DiskCache::in_folder(file.join("below"));
        cache.store(&key(1), &entry(1));
        assert_eq!(cache.load(&key(1)), None);
    }

    #[test]
    fn past_the_limit_the_least_recently_used_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let one = encode_entry(&entry(0)).len() as u64;
        let cache = DiskCache { limit_bytes: 4 * one, ..DiskCache::in_folder(folder.path()) };
        let past = SystemTime::now() - std::time::Duration::from_secs(1000);
        for index in 0..4 {
            cache.store(&key(index), &entry(index));
            let file = fs::File::open(cache.path(&key(index)).unwrap()).unwrap();
            file.set_modified(past + std::time::Duration::from_secs(u64::from(index))).unwrap();
        }
        assert!(cache.load(&key(0)).is_some(), "use makes it young");
        cache.store(&key(4), &entry(4));
        let kept: Vec<u8> = (0..5).filter(|&index| cache.load(&key(index)).is_some()).collect();
        assert_eq!(kept, [0, 4]);
    }

    #[test]
    fn concurrent_writers_and_readers_see_whole_entries_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DiskCache::in_folder(folder.path());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        cache.store(&key(9), &entry(9));
                        if let Some(found) = cache.load(&key(9)) {
                            assert_eq!(found, entry(9));
                        }
                    }
                });
            }
        });
        assert_eq!(cache.load(&key(9)), Some(entry(9)));
    }
}
