//! Programs in C and C++, compiled with the system's compilers against an installed library, and run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use msdeform_c::cpu::*;
use msdeform_c::cuda::*;
use msdeform_c::problem::*;
use msdeform_c::status::*;
use msdeform_c::tensors::*;

use crate::header;
use crate::library::{built, output_of};

#[path = "../../packaging/install.rs"]
mod install;

/// What compilers must have nothing to say about.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// Where the library is installed for the tests: once, they only read it.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let version = env!("CARGO_PKG_VERSION");
        let files = install::install(header::folder(), version, &built(), &prefix).unwrap();
        assert!(files.iter().all(|file| file.exists()));
        prefix
    })
}

fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig")).args(arguments).arg("msdeform");
    output_of(&mut command).split_whitespace().map(str::to_owned).collect()
}

fn example(name: &str) -> PathBuf {
    header::folder().join("examples").join(name)
}

/// Compiles a program with flags of its own and libraries, and runs it.
fn run(name: &str, program: &str, standard: &str, source: &Path, libraries: &[String]) -> String {
    let binary = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new(program);
    compiler.arg(format!("-std={standard}")).args(STRICT).arg(source);
    compiler
        .args(pkg_config(&["--cflags"]))
        .args(libraries)
        .args(["-lm", "-ldl", "-o"])
        .arg(&binary);
    output_of(&mut compiler);
    output_of(Command::new(binary).env("LD_LIBRARY_PATH", prefix().join("lib")))
}

#[test]
fn the_c_example_computes_as_its_own_loops_do_and_meets_errors() {
    for standard in ["c99", "c11"] {
        let name = format!("attention_{standard}");
        let libraries = pkg_config(&["--libs"]);
        let said = run(&name, "cc", standard, &example("attention.c"), &libraries);
        assert!(
            said.contains("MSDEFORM_STATUS_BAD_LENGTH: `sampling_locations` has 508 bytes"),
            "{said}"
        );
    }
}

#[test]
fn the_cpp_example_computes_from_offsets_as_its_own_formula_does() {
    let libraries = pkg_config(&["--libs"]);
    let said = run("from_offsets", "c++", "c++17", &example("from_offsets.cpp"), &libraries);
    assert!(said.contains("MSDEFORM_STATUS_WRONG_TENSOR: `sampling_locations` is given"), "{said}");
}

#[test]
fn a_program_may_carry_the_library_inside() {
    let libraries = pkg_config(&["--variable=static_libs"]);
    run("attention_static", "cc", "c99", &example("attention.c"), &libraries);
    let binary = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("attention_static");
    let needed = output_of(Command::new("readelf").arg("-d").arg(binary));
    assert!(!needed.contains("libmsdeform"), "{needed}");
}

#[test]
fn the_cuda_examples_say_what_is_missing_or_compute_as_the_processor_does() {
    for (name, results) in [("cuda", 1), ("cuda_from_offsets", 5)] {
        let source = example(&format!("{name}.c"));
        for standard in ["c99", "c11"] {
            let said = run(name, "cc", standard, &source, &pkg_config(&["--libs"]));
            let compared = said.matches("off by").count();
            assert!(said.contains("no GPU here: ") || compared == results, "{said}");
        }
    }
}

#[test]
fn the_pkg_config_file_names_this_version() {
    assert_eq!(pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
}

/// A project that finds the package, with a program for each of its targets.
const PROJECT: &str = r#"cmake_minimum_required(VERSION 3.18)
project(example LANGUAGES C CXX)
find_package(msdeform VERSION REQUIRED)
find_package(msdeform REQUIRED)  # A second one must not define the targets again.
add_executable(shared attention.c)
target_link_libraries(shared PRIVATE msdeform::msdeform m)
add_executable(static from_offsets.cpp)
target_link_libraries(static PRIVATE msdeform::static)
"#;

fn cmake(folder: &Path, version: &str) -> Command {
    std::fs::create_dir_all(folder).unwrap();
    for name in ["attention.c", "from_offsets.cpp"] {
        std::fs::copy(example(name), folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("CMakeLists.txt"), PROJECT.replace("VERSION REQUIRED", version))
        .unwrap();
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(folder).arg("-B").arg(folder.join("built"));
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display()));
    configure
}

#[test]
fn cmake_finds_both_libraries_and_their_programs_run() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cmake");
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    output_of(&mut cmake(&folder, &format!("{major}.{minor} REQUIRED")));
    output_of(Command::new("cmake").arg("--build").arg(folder.join("built")));
    for (program, holds_library) in [("shared", false), ("static", true)] {
        let program = folder.join("built").join(program);
        // Without LD_LIBRARY_PATH: CMake writes the folder of the library into programs.
        output_of(&mut Command::new(&program));
        let needed = output_of(Command::new("readelf").arg("-d").arg(program));
        assert_eq!(needed.contains(install::SHARED_NAME), !holds_library, "{needed}");
    }
}

#[test]
fn cmake_refuses_versions_that_may_differ() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cmake-versions");
    for version in ["0.0.9", "9.0"] {
        let refused = cmake(&folder, &format!("{version} REQUIRED")).output().unwrap();
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && text.contains("requested version"), "{text}");
    }
}

/// Everything in a block of code of the page stands in an example, and the commands that compile work as they are.
#[test]
fn what_the_page_shows_is_what_the_examples_do() {
    let page = std::fs::read_to_string(header::folder().join("../../docs/c.md")).unwrap();
    let sources = ["attention.c", "from_offsets.cpp", "cuda.c", "cuda_from_offsets.c"]
        .map(|name| lines(&std::fs::read_to_string(example(name)).unwrap()));
    let (mut shown, mut commands) = (0, 0);
    for block in page.split("\n```").skip(1).step_by(2) {
        let (language, code) = block.split_once('\n').unwrap();
        match language {
            "c" | "cpp" => {
                shown += 1;
                let code = lines(code);
                assert!(
                    sources.iter().any(|source| source.contains(&code)),
                    "in no example:\n{code}"
                );
            }
            "sh" if code.contains("pkg-config") => {
                commands += 1;
                let mut shell = Command::new("sh");
                let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("page");
                std::fs::create_dir_all(&folder).unwrap();
                for name in ["attention.c", "from_offsets.cpp"] {
                    std::fs::copy(example(name), folder.join(name)).unwrap();
                }
                shell.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
                output_of(shell.args(["-ec", code]).current_dir(folder));
            }
            _ => {}
        }
    }
    assert!(shown >= 4 && commands == 1, "{shown} {commands}");
}

/// A text line by line, without the room before them.
fn lines(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .fold(String::new(), |all, line| all + line + "\n")
}

macro_rules! layout {
    ($($type:ident { $($field:ident),* $(,)? })*) => {{
        let mut c = String::from("#include <stdio.h>\n#include <msdeform.h>\nint main(void) {\n");
        let mut rust = String::new();
        $(
            let mut end = 0;
            $(
                let offset = std::mem::offset_of!($type, $field);
                // A new field must not come to lie in what older programs leave undefined.
                assert_eq!(offset, end, concat!("padding before ", stringify!($type), ".", stringify!($field)));
                // SAFETY: the structs of the interface may be all zero.
                let zero: $type = unsafe { std::mem::zeroed() };
                end = offset + size_of_val(&zero.$field);
                let name = concat!(stringify!($type), ".", stringify!($field));
                rust += &format!("{name} {offset}\n");
                c += &format!("printf(\"{name} %zu\\n\", offsetof({}, {}));\n", stringify!($type), stringify!($field));
            )*
            assert_eq!(size_of::<$type>(), end, concat!("padding at the end of ", stringify!($type)));
            rust += &format!("{} {end}\n", stringify!($type));
            c += &format!("printf(\"{} %zu\\n\", sizeof({}));\n", stringify!($type), stringify!($type));
        )*
        (c + "return 0;\n}\n", rust)
    }};
}

#[test]
fn structs_lie_in_memory_as_the_header_says_and_have_no_padding() {
    let (c, rust) = layout! {
        msdeform_message { text, capacity, length }
        msdeform_offsets {
            struct_size, anchors, kind, reference_of, offset_scale, raw_weights, nearest, reserved,
        }
        msdeform_problem_description {
            struct_size, batch, heads, channels, queries, level_count, level_sizes, level_starts, spatial, points,
            points_per_level, offsets, layout, dtype, sampling_dtype, reference_dtype,
            output_dtype, reserved,
        }
        msdeform_tensor_info { struct_size, bytes, elements, shape, rank, dtype }
        msdeform_input { data, bytes, strides, stride_count }
        msdeform_output { data, bytes }
        msdeform_tensors {
            struct_size, value, sampling_locations, attention_weights, reference_points, sampling_offsets,
            attention_logits, grad_output, output, grad_value, grad_sampling_locations, grad_attention_weights,
            grad_reference_points, grad_sampling_offsets, grad_attention_logits, workspace,
        }
        msdeform_threads { struct_size, count, context, run }
        msdeform_cpu_options { struct_size, workers, threads, isa, reserved }
        msdeform_cpu_plan_info { struct_size, workspace_bytes, threads, isa, reserved }
        msdeform_cuda_engine_options { struct_size, cache_folder }
        msdeform_cuda_plan_options {
            struct_size, value_strides, grad_output_strides, variant, direction, gradients, deterministic,
            pointer_checks, workspace, query_raster_width, reference_strides, offset_strides, logit_strides,
        }
        msdeform_cuda_plan_info { struct_size, workspace_bytes, own_bytes, variant }
    };
    let source = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("layout.c");
    std::fs::write(&source, c).unwrap();
    assert_eq!(run("layout", "cc", "c99", &source, &pkg_config(&["--libs"])), rust);
}
