//! The Python environments of the steps: what is in them, and in which version.

use crate::uv::Environment;

/// What the scripts of `tools/` need, mypy for the Python package, and ruff for both.
pub static SCRIPTS: Environment<'_> = Environment::new(
    "scripts",
    &["lizard==1.24.*", "mypy==2.4.*", "numpy", "pytest", "ruff==0.17.*"],
);

/// Pinned, because another version breaks lines elsewhere.
pub static CLANG_FORMAT: Environment<'_> =
    Environment::new("clang-format", &["clang-format==23.1.3"]);

/// Sphinx, with its theme and the parser of Markdown, which finds links too.
pub static SPHINX: Environment<'_> = Environment::new(
    "site",
    &["furo==2025.12.19", "myst-parser==5.2.*", "sphinx==9.0.*", "sphinx-external-toc==1.1.*"],
);

pub static PLAYWRIGHT: Environment<'_> = Environment::new(
    "browser",
    &["coloraide==8.*", "numpy", "onnx", "pytest-playwright==0.10.*", "playwright==1.65.*"],
);

/// The compiler of the CUDA kernels as a wheel, because compiling needs neither a GPU nor a toolkit; with the disassembler
/// that its machine code is checked with. `crates/msdeform-cuda/resources.csv` names the same version: another one allocates
/// registers differently.
pub static NVRTC: Environment<'_> =
    Environment::new("nvrtc", &["nvidia-cuda-nvrtc==13.4.*", "nvidia-cuda-nvdisasm==13.4.*"]);

/// Other versions that users have, whose machine code is checked too: that of the GPU machine, and one of CUDA 12.
pub static OTHER_NVRTC: [Environment<'_>; 2] = [
    Environment::new("nvrtc-13.0", &["nvidia-cuda-nvrtc==13.0.*"]),
    Environment::new("nvrtc-12.9", &["nvidia-cuda-nvrtc-cu12==12.9.*"]),
];

/// The runtime that loads the custom operators in tests: its wheel has the library that programs link.
pub static ONNX_RUNTIME: Environment<'_> =
    Environment::new("onnxruntime", &["onnxruntime==1.31.*"]);

/// What packs wheels, what changes their libraries, Zig, and what calls Zig as a linker.
pub static MATURIN: Environment<'_> = Environment::new(
    "wheel",
    &["auditwheel==6.8.*", "cargo-zigbuild==0.24.*", "maturin==1.16.*", "ziglang==0.17.*"],
);

/// What reads the libraries of wheels.
pub static READERS: Environment<'_> =
    Environment::new("wheel-check", &["abi3audit==0.0.26", "lief==1.0.*"]);

/// NumPy alone, which the wheel brings.
pub static ALONE: Environment<'_> =
    Environment::clean("package-alone", &["pytest", "pytest-xdist"]);

/// For the compilers that the wheel's extras bring.
pub static CUDA_12: Environment<'_> = Environment::clean("package-nvrtc12", &[]);
pub static CUDA_13: Environment<'_> = Environment::clean("package-nvrtc13", &[]);

/// PyTorch, and the patched packages that are light; `tests/test_patching_others.py` names the others. The checkers of types
/// are for the test of a user's file, which needs PyTorch's types.
pub static TORCH: Environment<'_> = Environment::clean(
    "package-torch",
    &[
        "mypy==2.4.*",
        "numpy",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "openvino",
        "pillow",
        "pyright[nodejs]==1.1.*",
        "pytest",
        "pytest-xdist",
        "rfdetr",
        // Without the builder, which no index of packages has.
        "tensorrt-cu13-bindings==11.4.*",
        "tensorrt-lean-cu13-libs==11.4.*",
        "torch",
        // Brings the version of `kernels` that it accepts: with another one it looks for none, without a message.
        "transformers[kernels]",
        "ultralytics",
    ],
);

/// The packages whose exports are searched, and the tools that change exported models.
pub static EXPORTS: Environment<'_> = Environment::new(
    "exports",
    &[
        "libreyolo==1.6.*",
        "lightly-train==0.18.*",
        "onnx==1.23.*",
        "onnxconverter-common==1.16.*",
        "onnxruntime==1.31.*",
        "onnxscript",
        "onnxsim==0.8.*",
        "onnxslim==0.1.*",
        "rfdetr==1.11.*",
        "sympy",
        "timm",
        "torch==2.15.*",
        "transformers==5.23.*",
        "ultralytics==8.4.*",
    ],
);

/// Apart, because optimum needs transformers 4.
pub static OPTIMUM: Environment<'_> =
    Environment::new("optimum", &["onnxscript", "optimum[onnxruntime]", "timm", "torch==2.15.*"]);
