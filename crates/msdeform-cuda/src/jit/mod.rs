//! From a variant and a configuration to machine code: compile, or take it from the cache.

mod cache;
mod pack;
mod store;

use std::sync::Arc;

use crate::error::Result;
use crate::kernel_text::{KernelText, Selection};
use crate::nvrtc::{Compiled, Nvrtc};
use crate::sources::SourceFile;
use crate::variants::Variant;

pub use cache::{DiskCache, decode_entry, encode_entry};
pub use pack::{KernelPack, PackGroup, encode_pack};
use pack::{PACK_IN_PACKAGES, PACK_VARIABLE};
pub use store::{Code, CodeOrigin, CodeStore, JitCounts};

/// Options that every kernel is compiled with. `-v` puts registers and spills into the log, which is
/// kept with the cubin.
pub const COMMON_OPTIONS: &[&str] = &["--std=c++17", "--ptxas-options=-v"];

/// Everything that determines a cubin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The kernel's file.
    pub name: &'static str,
    /// What is compiled.
    pub text: Arc<KernelText>,
    /// Compiler options, architecture and macros included.
    pub options: Vec<String>,
}

/// Names the result of a recipe with one compiler.
pub type Key = blake3::Hash;

impl Recipe {
    /// How to compile a variant for an architecture (such as `sm_90a`) with these macros.
    pub fn new(variant: &Variant, arch: &str, defines: &[String]) -> Self {
        let text = KernelText::of(variant, &Selection::of_defines(defines));
        Self::of_text(variant.source.name, text, arch, defines)
    }

    /// How to compile a kernel that is not a registered variant.
    pub fn of_source(
        source: SourceFile,
        headers: &[SourceFile],
        arch: &str,
        defines: &[String],
    ) -> Self {
        let text = KernelText::new(source, headers, &Selection::of_defines(defines));
        Self::of_text(source.name, Arc::new(text), arch, defines)
    }

    fn of_text(name: &'static str, text: Arc<KernelText>, arch: &str, defines: &[String]) -> Self {
        let mut options = vec![format!("--gpu-architecture={arch}")];
        options.extend(COMMON_OPTIONS.iter().map(|&option| option.to_owned()));
        options.extend_from_slice(defines);
        Self { name, text, options }
    }

    /// The key of the cubin this makes with a compiler of this version.
    pub fn key(&self, compiler: crate::CudaVersion) -> Key {
        self.hash(&compiler.to_string())
    }

    /// The key of this recipe without the compiler's version.
    pub fn content(&self) -> Key {
        self.hash("any compiler")
    }

    fn hash(&self, compiler: &str) -> Key {
        let mut hasher = blake3::Hasher::new();
        // Every part is preceded by its length, so that no two recipes read the same.
        let mut part = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        part(compiler);
        part(self.name);
        self.text.code().for_each(&mut part);
        self.options.iter().for_each(|option| part(option));
        hasher.finalize()
    }

    /// Compiles it.
    pub fn compile(&self, nvrtc: &Nvrtc) -> Result<Compiled> {
        nvrtc.compile(self.name, self.text.as_str(), &self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaVersion;
    use crate::registry::REGISTRY;

    const COMPILER: CudaVersion = CudaVersion { major: 13, minor: 0 };

    #[test]
    #[cfg_attr(miri, ignore = "hashes all sources eight times, which takes Miri minutes")]
    fn the_key_depends_on_every_part_of_the_recipe() {
        let recipe = Recipe::new(REGISTRY[0], "sm_90a", &["-DA=1".to_owned(), "-DB=2".to_owned()]);
        let key = recipe.key(COMPILER);
        assert_eq!(key, recipe.clone().key(COMPILER));
        let mut changed = vec![recipe.key(CudaVersion { major: 13, minor: 1 })];
        let mut change = |edit: &dyn Fn(&mut Recipe)| {
            let mut other = recipe.clone();
            edit(&mut other);
            changed.push(other.key(COMPILER));
        };
        change(&|other| other.options.swap(3, 4));
        change(&|other| other.options[0] = "--gpu-architecture=sm_80".to_owned());
        change(&|other| other.name = "other.cu");
        change(&|other| {
            let selection = Selection::Everything;
            let text = SourceFile { name: "other.cu", text: "int other;" };
            other.text = Arc::new(KernelText::new(text, &[], &selection));
        });
        change(&|other| {
            // The same characters, cut elsewhere.
            other.options[3] = "-DA=1-".to_owned();
            other.options[4] = "DB=2".to_owned();
        });
        for other in &changed {
            assert_ne!(*other, key);
        }
    }
}
