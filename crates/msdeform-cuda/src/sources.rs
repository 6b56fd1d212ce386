//! The device code, embedded. Kernels include headers by plain name and NVRTC gets them in memory, so
//! nothing is looked up on the user's disk.

/// A file handed to the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path under `kernels/`, which is also what `#include` names.
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
    "ladder/cooperative_tiles.cuh",
    "ladder/lane_groups.cuh",
    "ladder/resident_levels.cuh",
    "ladder/rounds.cuh",
    "ladder/rung.cuh",
    "ladder/sample_quads.cuh",
    "ladder/sample_records.cuh",
    "ladder/shuffle_sums.cuh",
    "ladder/shuffled_samples.cuh",
    "ladder/tensor_tiles.cuh",
    "ladder/tiles.cuh",
    "ladder/warp_roles.cuh",
    "level_sort.cuh",
    "numeric.cuh",
    "params.cuh",
    "ptx_clusters.cuh",
    "ptx_copies.cuh",
    "ptx_launches.cuh",
    "ptx_matrices.cuh",
    "ptx_memory.cuh",
    "ptx_numbers.cuh",
    "ptx_textures.cuh",
    "ptx_warps.cuh",
    "query_tiles.cuh",
    "sample_gradients.cuh",
    "tile_few.cuh",
    "tile_gather.cuh",
    "tile_lists.cuh",
    "tile_products.cuh",
    "tile_stores.cuh",
];

/// Embeds the kernel of a variant: `kernel_source!("fwd_general.cu")`.
macro_rules! kernel_source {
    ($name:literal) => {
        $crate::sources::SourceFile {
            name: $name,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $name)),
        }
    };
}
pub(crate) use kernel_source;

/// Every file of a kind under `kernels/` but the probes, by its path there.
#[cfg(test)]
pub(crate) fn on_disk(extension: &str) -> Vec<String> {
    let kernels = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let mut found = Vec::new();
    for folder in ["", "ladder/"] {
        for entry in std::fs::read_dir(kernels.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(extension) {
                found.push(format!("{folder}{name}"));
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_in_the_folder_is_embedded() {
        let embedded: Vec<&str> = HEADERS.iter().map(|header| header.name).collect();
        assert_eq!(on_disk(".cuh"), embedded);
    }

    #[test]
    fn only_the_ptx_headers_speak_ptx_and_nothing_includes_the_toolkit() {
        let kernels = crate::registry::REGISTRY.iter().map(|variant| variant.source());
        for file in HEADERS.iter().copied().chain(kernels) {
            let speaks_ptx = file.text.contains("asm volatile(") || file.text.contains("asm(");
            assert_eq!(speaks_ptx, file.name.starts_with("ptx_"), "{}", file.name);
            assert!(!file.text.contains("#include <"), "{}", file.name);
        }
    }
}
