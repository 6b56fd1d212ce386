//! The general forward kernel for engines of `TensorRT`: PTX, and how `TensorRT` launches it.
//!
//! `TensorRT` passes pointers to the inputs, 32-bit integers and a pointer to the output. The entry in
//! `tensorrt/forward.cu` makes the parameter of `fwd_general` of them. The text of that kernel is inlined unchanged.

use std::fmt::Display;

use msdeform::Problem;

use crate::driver::{DeviceProps, LaunchGeometry};
use crate::error::Result;
use crate::jit::Recipe;
use crate::kernel_text::MACRO_PREFIX;
use crate::nvrtc::Nvrtc;
use crate::params::LevelGeometry;
use crate::sources::{HEADERS, SourceFile};
use crate::variants::fwd_general::FWD_GENERAL;
use crate::variants::{Call, KnobChoices};

const SOURCE: SourceFile =
    SourceFile { name: "tensorrt_forward.cu", text: include_str!("../tensorrt/forward.cu") };

/// PTX of this architecture runs on all GPUs that the kernels run on.
const ARCHITECTURE: &str = "compute_80";

/// A number of the call that the kernel reads from an argument, in the order of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Images.
    Batch,
    /// Pixels of all levels.
    Pixels,
    /// Queries of an image.
    Queries,
    /// Images that have references of their own: all or 1.
    ReferenceImages,
    /// Queries that have references of their own: all or 1.
    ReferenceQueries,
}

impl Number {
    const ALL: [Self; 5] =
        [Self::Batch, Self::Pixels, Self::Queries, Self::ReferenceImages, Self::ReferenceQueries];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Pixels => "pixels",
            Self::Queries => "queries",
            Self::ReferenceImages => "reference_images",
            Self::ReferenceQueries => "reference_queries",
        }
    }
}

/// How `spatial_shapes` and `level_start_index` are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integers {
    /// 32 bits, as `MultiscaleDeformableAttnPlugin_TRT` has them.
    I32,
    /// 64 bits, as ONNX has them.
    I64,
}

/// A kernel and its launch. Batch, queries and the sizes of the levels may change from run to run; all else is
/// compiled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedKernel {
    /// The entry in the PTX: another one for each specialisation.
    pub name: String,
    /// Threads of a block.
    pub threads: u32,
    /// Rows (image, query, head) that a block computes; as many blocks are launched as all rows need, and at least one.
    pub rows_per_block: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// The integers between the pointers to the inputs and the pointer to the output, all of 32 bits.
    pub numbers: Vec<Number>,
    defines: Vec<String>,
}

impl EmbeddedKernel {
    /// The kernel for calls like this one.
    ///
    /// # Errors
    /// [`Error::Problem`](crate::Error::Problem) for a problem that no kernel computes, such as one in `f64`.
    pub fn new(problem: &Problem, integers: Integers) -> Result<Self> {
        // What the kernel needs does not depend on the GPU.
        let device = DeviceProps::h200();
        let call = Call::new(problem, &device);
        let variant = &FWD_GENERAL;
        variant.check(&call)?;
        let refused = |reason| variant.refusal(reason);
        let configuration = (variant.configure)(&call, &KnobChoices::default()).map_err(refused)?;
        let geometry = configuration.geometry().unwrap_or(LaunchGeometry::linear(1, 1));
        let threads = geometry.block[0];
        let lanes = configuration.derived.get("lanes").unwrap_or(1) as u32;
        let units = configuration.units(variant, &call);
        let of_variant = units.into_iter().flat_map(|unit| unit.defines);
        let mut defines: Vec<String> = of_variant.filter(|define| !is_levels(define)).collect();
        defines.extend(own_defines(problem, integers, lanes));
        let hash = blake3::hash(defines.join(" ").as_bytes()).to_hex();
        let name = format!("msdeform_{}_{}", variant.spec.id, &hash[..8]);
        defines.push(define("ENTRY", &name));
        let numbers =
            if problem.offsets().is_some() { &Number::ALL[..] } else { &Number::ALL[..3] };
        Ok(Self {
            name,
            threads,
            rows_per_block: threads / lanes,
            shared_bytes: shared_bytes(problem.levels().len()),
            numbers: numbers.to_vec(),
            defines,
        })
    }

    /// The macros that the text is compiled with.
    #[doc(hidden)]
    pub fn defines(&self) -> &[String] {
        &self.defines
    }

    /// The blocks of a call with this many rows.
    pub fn blocks(&self, rows: u64) -> u64 {
        rows.div_ceil(u64::from(self.rows_per_block)).max(1)
    }

    /// Compiles the kernel for every GPU from compute capability 8.0 on.
    ///
    /// # Errors
    /// [`Error::Compile`](crate::Error::Compile) with the compiler's log.
    pub fn ptx(&self, nvrtc: &Nvrtc) -> Result<String> {
        let recipe = self.recipe(ARCHITECTURE);
        nvrtc.ptx(recipe.name, recipe.text.as_str(), &recipe.options)
    }

    /// How to compile the kernel for an architecture, such as `sm_90a`.
    #[doc(hidden)]
    pub fn recipe(&self, architecture: &str) -> Recipe {
        let mut headers = HEADERS.to_vec();
        headers.push(FWD_GENERAL.source);
        Recipe::of_source(SOURCE, &headers, architecture, &self.defines)
    }
}

/// Dynamic shared memory of a block: `Levels` in `tensorrt/forward.cu`. Compilers read up to 16 aligned bytes at once, also
/// where the last of them are not used.
const fn shared_bytes(levels: usize) -> u32 {
    (levels * size_of::<LevelGeometry>() + size_of::<u64>()).next_multiple_of(16) as u32
}

fn define(name: &str, value: &dyn Display) -> String {
    format!("-D{MACRO_PREFIX}{name}={value}")
}

/// Whether a macro is the length of the list of levels in the parameter. The levels of this kernel lie elsewhere.
fn is_levels(define: &str) -> bool {
    define
        .strip_prefix("-D")
        .and_then(|rest| rest.strip_prefix(MACRO_PREFIX))
        .is_some_and(|rest| rest.starts_with("LEVELS="))
}

/// The macros that only `tensorrt/forward.cu` reads, and the shortest list of levels.
fn own_defines(problem: &Problem, integers: Integers, lanes: u32) -> Vec<String> {
    let levels = problem.levels().len();
    let first: Vec<String> =
        (0..levels).map(|level| problem.level_samples(level).start.to_string()).collect();
    let integer = match integers {
        Integers::I32 => "int",
        Integers::I64 => "long long",
    };
    let mut defines = vec![
        define("LEVELS", &1),
        define("INTEGER", &integer),
        define("LEVEL_COUNT", &levels),
        define("FIRST_SAMPLES", &first.join(",")),
        define("ROW_SAMPLES", &problem.samples()),
        define("ROW_HEADS", &problem.heads()),
        define("ROW_CHANNELS", &problem.channels()),
        define("LANES", &lanes),
    ];
    if let Some(rule) = problem.offsets() {
        defines.push(define("REFERENCES", &rule.references(levels)));
        defines.push(define("OFFSET_SCALE", &rule.scale().to_bits().cast_signed()));
    }
    defines
}

#[cfg(test)]
mod tests {
    use msdeform::{DType, Offsets, ProblemBuilder};

    use super::*;
    use crate::nvrtc::KernelResources;
    use crate::variants::tests::deformable_detr;

    fn kernel(problem: ProblemBuilder) -> EmbeddedKernel {
        EmbeddedKernel::new(&problem.build().unwrap(), Integers::I64).unwrap()
    }

    /// The levels lie in shared memory and all else in registers, so nothing needs a stack.
    #[test]
    fn every_architecture_compiles_it_without_a_stack() {
        let Some(nvrtc) = Nvrtc::for_tests() else { return };
        let fused = |rule| deformable_detr(300).offsets(rule);
        let problems = [
            deformable_detr(300),
            deformable_detr(300).dtype(DType::F32),
            fused(Offsets::from_points()),
            fused(Offsets::from_boxes()).dtype(DType::F32),
        ];
        for problem in problems {
            let kernel = kernel(problem);
            for architecture in ["sm_80", "sm_90a", "sm_120a"] {
                let compiled = kernel.recipe(architecture).compile(&nvrtc).unwrap();
                let found = KernelResources::parse(&compiled.log, &kernel.name).unwrap();
                let stack = (found.stack_bytes, found.spill_store_bytes);
                assert_eq!(stack, (0, 0), "{architecture} {:?}", kernel.defines);
            }
        }
    }

    #[test]
    fn the_ptx_is_for_every_gpu_and_has_the_arguments_of_a_plugin() {
        let Some(nvrtc) = Nvrtc::for_tests() else { return };
        for (problem, pointers) in
            [(deformable_detr(300), 5), (deformable_detr(300).offsets(Offsets::from_points()), 6)]
        {
            let kernel = kernel(problem);
            let ptx = kernel.ptx(&nvrtc).unwrap();
            assert!(ptx.contains(".target sm_80"), "{}", &ptx[..300]);
            let (_, entry) = ptx.split_once(&format!(".entry {}(", kernel.name)).unwrap();
            let (parameters, _) = entry.split_once(')').unwrap();
            let words = parameters.split_whitespace().filter(|word| word.starts_with(".u"));
            let mut expected = vec![".u64"; pointers];
            expected.extend(vec![".u32"; kernel.numbers.len()]);
            expected.push(".u64");
            assert_eq!(words.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_name_stands_for_what_is_compiled_and_not_for_sizes_that_change() {
        let usual = kernel(deformable_detr(300));
        assert_eq!(
            usual,
            kernel(deformable_detr(900).batch(1).levels([(9, 9), (5, 5), (3, 3), (2, 2)]))
        );
        for other in [
            deformable_detr(300).dtype(DType::Bf16),
            deformable_detr(300).heads(4),
            deformable_detr(300).points(8),
            deformable_detr(300).offsets(Offsets::from_points()),
        ] {
            assert_ne!(usual.name, kernel(other).name);
        }
        let problem = deformable_detr(300).build().unwrap();
        assert_ne!(usual.name, EmbeddedKernel::new(&problem, Integers::I32).unwrap().name);
    }

    #[test]
    fn a_launch_covers_all_rows_and_is_never_empty() {
        let kernel = kernel(deformable_detr(300).dtype(DType::F16));
        let (threads, rows) = (kernel.threads, kernel.rows_per_block);
        assert_eq!((threads, rows), (128, 32), "4 lanes for 32 channels");
        assert_eq!([0, 1, 32, 33].map(|rows| kernel.blocks(rows)), [1, 1, 1, 2]);
    }

    #[test]
    fn f64_is_refused() {
        let problem = deformable_detr(300).dtype(DType::F64).build().unwrap();
        let error = EmbeddedKernel::new(&problem, Integers::I64).unwrap_err();
        assert!(error.to_string().contains("f64"), "{error}");
    }
}
