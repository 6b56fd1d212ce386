//! The device code, embedded. Kernels include headers by plain name and NVRTC gets them in memory, so
//! nothing is looked up on the user's disk.

/// A file handed to the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The name `#include` uses.
    pub name: &'static str,
    /// Its contents.
    pub text: &'static str,
}

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(SourceFile { name: $name, text: include_str!(concat!("../kernels/", $name)) }),*]
    };
}

/// Every device header.
pub const HEADERS: &[SourceFile] = embedded![
    "chunked_sample.cuh",
    "config.cuh",
    "grad_output_rows.cuh",
    "intrinsics.cuh",
    "numeric.cuh",
    "params.cuh",
    "query_tiles.cuh",
    "sample_gradients.cuh",
    "tile_gather.cuh",
    "tile_lists.cuh"
];

/// Embeds the kernel of a variant: `kernel_source!("fwd_general.cu")`.
macro_rules! kernel_source {
    ($name:literal) => {
        $crate::sources::SourceFile {
            name: $name,
            text: include_str!(concat!("../../kernels/", $name)),
        }
    };
}
pub(crate) use kernel_source;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_header_in_the_folder_is_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let mut on_disk: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".cuh"))
            .collect();
        on_disk.sort();
        let embedded: Vec<&str> = HEADERS.iter().map(|header| header.name).collect();
        assert_eq!(on_disk, embedded);
    }

    #[test]
    fn only_the_intrinsics_speak_ptx_and_nothing_includes_the_toolkit() {
        let kernels = crate::registry::REGISTRY.iter().map(|variant| variant.source());
        for file in HEADERS.iter().copied().chain(kernels) {
            let speaks_ptx = file.text.contains("asm");
            assert_eq!(speaks_ptx, file.name == "intrinsics.cuh", "{}", file.name);
            assert!(!file.text.contains("#include <"), "{}", file.name);
        }
    }
}
