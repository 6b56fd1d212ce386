//! Installs the device compiler below `target/` and prints where it is:
//! `MSDEFORM_NVRTC=$(cargo run -q -p msdeform-emulator --example install_nvrtc) cargo test`.

use std::path::{Path, PathBuf};

fn main() -> Result<(), msdeform_emulator::EmulatorError> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    println!("{}", msdeform_emulator::nvrtc_wheel::install(&target)?.display());
    Ok(())
}
