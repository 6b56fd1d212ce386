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

/// Embeds a file of a crate's `kernels/`: `kernel_source!("fwd_general.cu")`.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_source {
    ($name:expr) => {
        $crate::sources::SourceFile {
            name: $name,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $name)),
        }
    };
}

/// Embeds several files.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_sources {
    ($($name:literal),* $(,)?) => { &[$($crate::kernel_source!($name)),*] };
}

/// Every device header.
pub const HEADERS: &[SourceFile] = kernel_sources![
    "any_backward_samples.cuh",
    "any_gradients.cuh",
    "any_samples.cuh",
    "chunked_sample.cuh",
    "config.cuh",
    "grad_output_rows.cuh",
    "gradients.cuh",
    "intrinsics.cuh",
    "kept_gradients.cuh",
    "kept_rows.cuh",
    "level_sort.cuh",
    "list_entries.cuh",
    "list_writes.cuh",
    "numeric.cuh",
    "offset_any.cuh",
    "offset_any_backward.cuh",
    "offset_any_gradients.cuh",
    "offset_gradients.cuh",
    "offset_lists.cuh",
    "offset_positions.cuh",
    "offset_rows.cuh",
    "offset_rule.cuh",
    "offset_samples.cuh",
    "offset_tensors.cuh",
    "offset_weights.cuh",
    "operator.cuh",
    "params.cuh",
    "plain_any.cuh",
    "plain_any_gradients.cuh",
    "plain_gradients.cuh",
    "plain_lists.cuh",
    "plain_samples.cuh",
    "plain_tensors.cuh",
    "plain_weights.cuh",
    "ptx_copies.cuh",
    "ptx_exponentials.cuh",
    "ptx_launches.cuh",
    "ptx_matrices.cuh",
    "ptx_memory.cuh",
    "ptx_numbers.cuh",
    "ptx_warps.cuh",
    "query_rasters.cuh",
    "query_tiles.cuh",
    "query_walk.cuh",
    "row_gradients.cuh",
    "row_softmax.cuh",
    "sample_gradients.cuh",
    "sample_sink.cuh",
    "sample_source.cuh",
    "sample_tiles.cuh",
    "sort_samples.cuh",
    "tile_few.cuh",
    "tile_gather.cuh",
    "tile_lists.cuh",
    "tile_products.cuh",
    "tile_stores.cuh",
];

/// Every file of a kind in `kernels/`.
#[cfg(test)]
pub(crate) fn on_disk(extension: &str) -> Vec<String> {
    let kernels = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let names = std::fs::read_dir(kernels).unwrap().map(|entry| entry.unwrap().file_name());
    let mut found: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    found.retain(|name| name.ends_with(extension));
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
}
