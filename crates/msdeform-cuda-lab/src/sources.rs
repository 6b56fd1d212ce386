//! The device code of the laboratory, embedded. It may include the product's headers.

use std::sync::LazyLock;

use msdeform_cuda::kernel_sources;
pub use msdeform_cuda::sources::SourceFile;

/// The headers of the ladder.
const OWN_HEADERS: &[SourceFile] = kernel_sources![
    "ladder/cooperative_tiles.cuh",
    "ladder/lane_groups.cuh",
    "ladder/resident_levels.cuh",
    "ladder/rounds.cuh",
    "ladder/rung.cuh",
    "ladder/sample_quads.cuh",
    "ladder/sample_records.cuh",
    "ladder/shuffle_sums.cuh",
    "ladder/shuffled_samples.cuh",
    "ladder/stolen_units.cuh",
    "ladder/tensor_tiles.cuh",
    "ladder/tiles.cuh",
    "ladder/warp_roles.cuh",
    "ptx_clusters.cuh",
    "ptx_textures.cuh",
];

/// The headers of the ladder and of the product.
pub fn headers() -> &'static [SourceFile] {
    static ALL: LazyLock<Vec<SourceFile>> = LazyLock::new(|| {
        let mut all = [OWN_HEADERS, msdeform_cuda::sources::HEADERS].concat();
        // The order is part of the ledger's fingerprints.
        all.sort_by_key(|header| header.name);
        all
    });
    &ALL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{OWN, REGISTRY};

    /// Paths of all files with an extension under `kernels/`, without the probes.
    fn on_disk(extension: &str) -> Vec<String> {
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

    #[test]
    fn every_header_in_the_folder_is_embedded() {
        let embedded: Vec<&str> = OWN_HEADERS.iter().map(|header| header.name).collect();
        assert_eq!(on_disk(".cuh"), embedded);
    }

    #[test]
    fn every_kernel_in_the_folder_is_registered() {
        let mut registered: Vec<&str> = OWN.iter().map(|variant| variant.source.name).collect();
        registered.sort_unstable();
        assert_eq!(on_disk(".cu"), registered);
        for variant in OWN {
            let (id, source) = (variant.spec.id, variant.source);
            let folder = if variant.spec.rung { "ladder/" } else { "" };
            assert_eq!(source.name, format!("{folder}{id}.cu"));
        }
    }

    #[test]
    fn only_ptx_headers_have_ptx() {
        let kernels = REGISTRY.iter().map(|variant| variant.source);
        for file in headers().iter().copied().chain(kernels) {
            let speaks_ptx = file.text.contains("asm volatile(") || file.text.contains("asm(");
            assert_eq!(speaks_ptx, file.name.starts_with("ptx_"), "{}", file.name);
            assert!(!file.text.contains("#include <"), "{}", file.name);
        }
    }

    /// The statements whose conditional operator has an arm with a product widened to 64 bits.
    fn chosen_products(text: &str) -> Vec<String> {
        let code: Vec<&str> =
            text.lines().map(|line| line.split("//").next().unwrap_or("").trim()).collect();
        let code = code.join(" ");
        let statements = code.split([';', '{', '}']);
        let found = statements.filter(|statement| {
            statement.match_indices('?').any(|(at, _)| has_widened_product(&statement[at..]))
        });
        found.map(|statement| statement.trim().to_owned()).collect()
    }

    /// Whether a text that begins with `?` has a widened product in the arms of that conditional operator. Products
    /// inside of an index, or after the parenthesis around the operator, do not count.
    fn has_widened_product(choice: &str) -> bool {
        const WIDENINGS: [&str; 2] =
            ["static_cast<long long>(", "static_cast<unsigned long long>("];
        let (mut parentheses, mut brackets) = (0, 0);
        for (at, letter) in choice.char_indices() {
            let widening = WIDENINGS.iter().find(|widening| choice[at..].starts_with(**widening));
            if let (Some(widening), 0) = (widening, brackets) {
                let mut open = 1;
                let behind = choice[at + widening.len()..].trim_start_matches(|letter| {
                    open += i32::from(letter == '(') - i32::from(letter == ')');
                    open > 0
                });
                let is_factor = behind[1..].trim_start().starts_with('*');
                if is_factor || choice[..at].trim_end().ends_with('*') {
                    return true;
                }
            }
            parentheses += i32::from(letter == '(') - i32::from(letter == ')');
            brackets += i32::from(letter == '[') - i32::from(letter == ']');
            if parentheses < 0 || brackets < 0 {
                return false;
            }
        }
        false
    }

    /// NVRTC (12.9 to 13.4) may compile such a statement into a zero in two registers that is overwritten under a
    /// predicate and read before it is written: a sample's pixel then lies anywhere in memory. If the choice is made in
    /// 32 bits and widened afterwards there is no such zero. `tests/compiled` searches machine code.
    #[test]
    fn no_kernel_widens_a_product_conditionally() {
        for text in [
            "below = thin ? 0 : static_cast<long long>(pitch) * BYTES;",
            "below = thin\n  ? 0 // why\n  : BYTES * static_cast<unsigned long long>(f(pitch));",
            "f(counts ? static_cast<long long>(a) * b : -1);",
        ] {
            assert_eq!(chosen_products(text).len(), 1, "{text}");
        }
        for text in [
            "below = static_cast<long long>(thin ? 0 : pitch) * BYTES;",
            "int a = b ? 0 : c; long long d = static_cast<long long>(a) * e;",
            "count = i < parts ? counts[static_cast<long long>(i) * tiles] : 0;",
            "f(a ? b : c) + static_cast<long long>(d) * e;",
            "a = b ? static_cast<long long>(c) : d;",
        ] {
            assert_eq!(chosen_products(text), Vec::<String>::new());
        }
        let kernels = REGISTRY.iter().map(|variant| variant.source);
        for file in headers().iter().copied().chain(kernels) {
            assert_eq!(chosen_products(file.text), Vec::<String>::new(), "{}", file.name);
        }
    }
}
