//! The driver's library itself: whether there is one, and what the bindings do not know of it.
//!
//! cudarc could say so too, but only in builds where it loads the library, and not where another crate has it linked.

use std::sync::OnceLock;

use libloading::Library;

/// All of them are among those that cudarc tries: what is found here is found there.
const NAMES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };

/// The driver, loaded once and never unloaded.
pub(super) fn driver() -> Option<&'static Library> {
    static DRIVER: OnceLock<Option<Library>> = OnceLock::new();
    let load = || {
        // SAFETY: loads libcuda by its ordinary name; its initialisers are meant to run in any process.
        NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok())
    };
    DRIVER.get_or_init(load).as_ref()
}
