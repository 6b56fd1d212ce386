//! The device code of the laboratory, embedded. It may include the product's headers.

use std::sync::LazyLock;

pub use msdeform_cuda::sources::SourceFile;

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(SourceFile { name: $name, text: include_str!(concat!("../kernels/", $name)) }),*]
    };
}

/// The headers of the ladder.
pub const OWN_HEADERS: &[SourceFile] = embedded![
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

/// Those, and the product's.
#[must_use]
pub fn headers() -> &'static [SourceFile] {
    static ALL: LazyLock<Vec<SourceFile>> = LazyLock::new(|| {
        let mut all = [OWN_HEADERS, msdeform_cuda::sources::HEADERS].concat();
        // The order is part of what a ledger's fingerprint is made of.
        all.sort_by_key(|header| header.name);
        all
    });
    &ALL
}

/// Embeds the kernel of a variant: `kernel_source!("ladder/fwd_simple.cu")`.
macro_rules! kernel_source {
    ($name:literal) => {
        $crate::sources::SourceFile {
            name: $name,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $name)),
        }
    };
}
pub(crate) use kernel_source;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{OWN, REGISTRY};

    /// Every file of a kind under `kernels/` but the probes, by its path there.
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
    fn every_kernel_in_the_folder_is_registered_under_its_own_name() {
        let mut registered: Vec<&str> = OWN.iter().map(|variant| variant.source().name).collect();
        registered.sort_unstable();
        assert_eq!(on_disk(".cu"), registered);
        for variant in OWN {
            let (id, source) = (variant.spec().id, variant.source());
            let folder = if variant.spec().rung { "ladder/" } else { "" };
            assert_eq!(source.name, format!("{folder}{id}.cu"));
        }
    }

    #[test]
    fn only_the_ptx_headers_speak_ptx_and_nothing_includes_the_toolkit() {
        let kernels = REGISTRY.iter().map(|variant| variant.source());
        for file in headers().iter().copied().chain(kernels) {
            let speaks_ptx = file.text.contains("asm volatile(") || file.text.contains("asm(");
            assert_eq!(speaks_ptx, file.name.starts_with("ptx_"), "{}", file.name);
            assert!(!file.text.contains("#include <"), "{}", file.name);
        }
    }

    /// The statements that choose between a product widened to 64 bits and something else.
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

    /// Whether a widened product stands in the arms of the choice that a text begins with; not one inside of an
    /// index, nor behind the parenthesis that the choice stands in.
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

    /// Of such a choice NVRTC (12.9 to 13.4) may make a zero in two registers that is overwritten under a predicate and
    /// read before it is there: a sample's pixel anywhere in memory. Chosen in 32 bits and widened afterwards there is
    /// no such zero. The emulator's `tests/resources` looks for it in the machine code.
    #[test]
    fn no_kernel_chooses_between_a_widened_product_and_something_else() {
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
        let kernels = REGISTRY.iter().map(|variant| variant.source());
        for file in headers().iter().copied().chain(kernels) {
            assert_eq!(chosen_products(file.text), Vec::<String>::new(), "{}", file.name);
        }
    }
}
