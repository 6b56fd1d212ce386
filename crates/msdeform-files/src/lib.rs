//! The one way in which msdeform touches files.
//!
//! - **Writing** ([`write()`], [`write_all`], [`FolderInTheMaking`]): under a temporary name in the same folder, synced,
//!   renamed. What bears a final name is whole. Several files are all written before the first of them is renamed.
//! - **What is no file** ([`Place`]) is never replaced: a FIFO or a character device (`/dev/null`, `/dev/stdout`) is
//!   written to, anything else is refused. A symbolic link is followed, and stays.
//! - **Temporaries** carry a lock for as long as their writer lives. The next writer into a folder removes those without
//!   one ([`sweep`]), so that what `kill -9` leaves behind is gone after the next run.
//! - **Evidence** carries a checksum ([`sealed`], [`check_seal`]): a record that was edited by hand is refused.
//! - **Reading** ([`read`], [`read_text`]) has a limit: a file is never believed about its size.

mod error;
mod place;
mod read;
mod seal;
mod temporary;
mod write;

pub use error::{Fault, FileError};
pub use place::Place;
pub use read::{read, read_text};
pub use seal::{BrokenSeal, check_seal, sealed};
pub use temporary::{FolderInTheMaking, is_temporary, sweep};
pub use write::{Content, Existing, write, write_all};
