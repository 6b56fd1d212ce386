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
    "held_samples.cuh",
    "intrinsics.cuh",
    "level_sort.cuh",
    "list_entries.cuh",
    "numeric.cuh",
    "offset_gradients.cuh",
    "offset_lists.cuh",
    "offset_positions.cuh",
    "offset_rows.cuh",
    "offset_samples.cuh",
    "params.cuh",
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
    "sample_source.cuh",
    "tile_few.cuh",
    "tile_gather.cuh",
    "tile_lists.cuh",
    "tile_products.cuh",
    "tile_stores.cuh",
];

/// The text that is left where samples are given: without what is compiled only where they follow from offsets. What a GPU
/// verified, or was tuned by, does not change with the latter.
#[must_use]
pub fn where_samples_are_given(text: &str) -> String {
    in_case(text, false)
}

/// The text that is left where samples follow from offsets.
#[must_use]
pub fn where_samples_follow(text: &str) -> String {
    in_case(text, true)
}

fn in_case(text: &str, from_offsets: bool) -> String {
    let mut kept = String::with_capacity(text.len());
    // Conditions within the block at hand, and whether its lines belong to the other case.
    let (mut depth, mut is_other) = (0, false);
    for line in text.lines() {
        let directive = line.trim_start();
        let opens = directive.starts_with("#if");
        match depth {
            0 if directive.starts_with("#if MSDA_FROM_OFFSETS") => {
                (depth, is_other) = (1, !from_offsets);
            }
            1 if directive.starts_with("#else") => is_other = from_offsets,
            1 if directive.starts_with("#endif") => (depth, is_other) = (0, false),
            _ => {
                if depth > 0 {
                    depth += usize::from(opens);
                    depth -= usize::from(directive.starts_with("#endif"));
                }
                if !is_other {
                    kept.push_str(line);
                    kept.push('\n');
                }
            }
        }
    }
    kept
}

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
    fn what_is_compiled_for_offsets_alone_is_left_out_of_the_rest() {
        let text = "a\n#if MSDA_FROM_OFFSETS\nb\n#if X\nc\n#else\nd\n#endif\n#else\ne\n#if Y\nf\n#endif\n#endif\n\
                    #if MSDA_FROM_OFFSETS && Z\ng\n#endif\n#if X\nh\n#else\ni\n#endif\n";
        let kept = "a\ne\n#if Y\nf\n#endif\n#if X\nh\n#else\ni\n#endif\n";
        assert_eq!(where_samples_are_given(text), kept);
        let kept = "a\nb\n#if X\nc\n#else\nd\n#endif\ng\n#if X\nh\n#else\ni\n#endif\n";
        assert_eq!(where_samples_follow(text), kept);
    }

    #[test]
    fn every_header_in_the_folder_is_embedded() {
        let embedded: Vec<&str> = HEADERS.iter().map(|header| header.name).collect();
        assert_eq!(on_disk(".cuh"), embedded);
    }
}
