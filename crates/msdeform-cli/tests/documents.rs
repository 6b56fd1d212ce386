//! Every command in the pages of the site: run as typed, in a folder with the tree's examples and records, or listed here with the
//! reason why it is not.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What is not run, by how it begins. The unit test of `args.rs` parses every `msdeform` among them.
const NOT_RUN: [(&str, &str); 44] = [
    ("pip install ", "takes packages from an index"),
    ("python -m msdeform.onnx", OF_THE_CHECK),
    ("msdeform onnx check ", OF_THE_CHECK),
    ("python -m msdeform", "is the Python package's: bindings/python/tests/test_first_look.py"),
    ("cargo xtask ", "is what runs this, or what only developers run; xtask's tests parse them"),
    ("export PKG_CONFIG_PATH=", "is for the lines behind it"),
    ("cc -std=c99 ", OF_C),
    ("./attention", OF_C),
    ("c++ -std=c++17 ", OF_C),
    ("./from_offsets", OF_C),
    ("msdeform -p msdeform-onnxruntime ", OF_THE_RUNTIME),
    ("cargo run -- path/to/libonnxruntime.so", OF_THE_RUNTIME),
    ("curl ", OF_THE_RUNTIME),
    ("optimum-cli ", OF_OPTIMUM),
    ("msdeform onnx rewrite exported/", OF_OPTIMUM),
    ("cmake -S bindings/openvino", OF_OPENVINO),
    ("cmake --build target/openvino", OF_OPENVINO),
    ("unzip msdeform-", OF_TRITON),
    ("cp msdeform/_native.abi3.so", OF_TRITON),
    ("docker run ", OF_TRITON),
    (
        "python tools/browser/",
        "serves until it is stopped: tools/browser/test_onnx_web.py imports it",
    ),
    ("python -c \"import msdeform.onnx", "needs the Python package: test_onnx_runtime.py calls it"),
    (
        "msdeform --example speed",
        "is candle's, a workspace of its own: cargo xtask candle compiles it",
    ),
    ("export CUDA_HOME=", "is for the line behind it"),
    ("cargo test --features cuda ", "needs nvcc and a GPU"),
    ("python export.py", OF_PYTORCH),
    ("torch=", OF_PYTORCH),
    ("g++ -std=c++20 ", OF_PYTORCH),
    ("./decoder ", OF_PYTORCH),
    ("MSDEFORM_RANDOM_PROBLEMS=", "takes minutes and compiles another crate"),
    ("compute-sanitizer ", "needs a GPU"),
    ("cargo test -p msdeform-emulator", "takes minutes; a test run of the workspace contains it"),
    ("msdeform counters ", "needs a GPU"),
    ("msdeform soak", "takes a minute and more; tests/commands.rs runs it on a few problems"),
    ("msdeform tune ", "takes a minute; tests/commands.rs and tests/processes run it for a moment"),
    ("msdeform warm", "compiles for minutes; tests/warm.rs runs it on a few kernels"),
    ("MSDEFORM_CACHE_DIR=/opt/msdeform msdeform warm", "likewise"),
    ("msdeform bench --record=", "times everything; others on one workload are run"),
    ("msdeform --record;", "times everything; tests/commands.rs runs it on one workload"),
    ("msdeform records merge ", "needs the reader's runs; tests/commands.rs merges two"),
    ("msdeform ledger;", "hashes for a minute in a debug build; msdeform-report tests the same"),
    ("msdeform run seed_tensors/", "needs the reader's tensors, of gigabytes"),
    ("msdeform man bench | man", "needs man; tests/processes renders every page where it is"),
    ("msdeform;", "times everything; tests/commands.rs runs it on one workload"),
];

const OF_C: &str =
    "needs the installed library: crates/msdeform-c/tests compiles and runs both programs";
const OF_THE_RUNTIME: &str =
    "needs ONNX Runtime: crates/msdeform-onnxruntime/tests runs the example and asks it";

const OF_OPTIMUM: &str =
    "needs optimum and a model: cargo xtask exports makes one of its models and rewrites it";
const OF_OPENVINO: &str = "needs OpenVINO: cargo xtask test builds the library and tests it";
const OF_TRITON: &str = "needs the server's image, and was not tried; the page says so";

const OF_THE_CHECK: &str = "needs Python: bindings/python/tests/test_onnx_check.py runs the check";

const OF_PYTORCH: &str = "needs PyTorch: bindings/python/tests/test_aoti.py runs these lines";

/// Who runs the other code of the pages, by its language and by how the page's path begins.
const RUN_ELSEWHERE: [(&str, &str, &str); 18] = [
    ("python", "README.md", "test_examples.py"),
    ("python", "bindings/python/README.md", "test_examples.py"),
    ("python", "bindings/python/docs/", "test_pages.py, which knows every page there"),
    ("python", "docs/", "test_pages.py, which knows every page with Python there"),
    ("rust", "README.md", "doctests of msdeform"),
    ("rust", "docs/rust.md", "doctests of msdeform-report"),
    ("rust", "docs/candle.md", "doctests of msdeform-candle"),
    ("rust", "docs/onnx-runtime.md", "test_pages.py compares it with an example that compiles"),
    ("toml", "docs/onnx-runtime.md", "not run: the manifest of the reader's program"),
    ("cmake", "docs/c.md", "crates/msdeform-c/tests build a project with these lines"),
    ("cpp", "docs/openvino.md", "not run: test_openvino.py adds the library from Python"),
    ("js", "docs/onnx-web.md", "tools/browser/test_onnx_web.py makes the same calls"),
    ("c", "docs/c.md", OF_C),
    ("cpp", "docs/c.md", OF_C),
    ("cpp", "bindings/python/docs/aoti.md", "test_aoti.py, as lines of the example"),
    ("cpp", "docs/onnx-runtime.md", "not run: no registry has the runtime's headers"),
    ("toml", "docs/candle.md", "not run: a line of the reader's manifest"),
    ("rust", "docs/adding-a-kernel.md", "no test: a part of a variant, shortened"),
];

/// Shorter than people would have it: the same code, fewer samples.
const FOR_A_MOMENT: &str = " --seconds 0.01 --no-probe";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// The pages of the site, from its table of contents.
fn pages() -> Vec<PathBuf> {
    let contents = std::fs::read_to_string(root().join("docs/site/toc.yml")).unwrap();
    let mut pages = Vec::new();
    for line in contents.lines().map(|line| line.trim_start().trim_start_matches("- ")) {
        if let Some(page) = line.strip_prefix("root: ").or_else(|| line.strip_prefix("file: ")) {
            pages.push(root().join(page).with_extension("md"));
        } else if let Some(folder) = line.strip_prefix("glob: ") {
            let folder = root().join(folder.split('*').next().unwrap());
            let folder = if folder.is_dir() { folder } else { folder.parent().unwrap().into() };
            pages.extend(std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages.dedup();
    pages
}

/// The lines of the shell blocks of a text, continued lines joined, comments left out.
fn commands(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let lines = blocks.flat_map(|(block, _)| {
        let joined = block.replace("\\\n", " ");
        joined.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let typed = lines.map(|line| line.split(" #").next().unwrap_or_default().trim().to_owned());
    let typed = typed.map(|line| match line.strip_prefix("cargo run --release") {
        Some(rest) => match rest.strip_prefix(" -- ") {
            Some(arguments) => format!("msdeform {arguments}"),
            None => format!("msdeform{rest}"),
        },
        None => line,
    });
    typed.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// The languages of the blocks of a text, in order; drawings and outputs have none.
fn languages(text: &str) -> Vec<&str> {
    let fences = text.lines().filter_map(|line| line.trim_start().strip_prefix("```"));
    let named = fences.step_by(2).map(|after| after.split(',').next().unwrap_or_default());
    named.filter(|language| !["", "text"].contains(language)).collect()
}

fn reason(command: &str) -> Option<usize> {
    let needs_a_gpu = command.starts_with("msdeform ") && command.contains("--device cuda");
    let ended = format!("{command};");
    let listed = NOT_RUN.iter().position(|(begin, _)| ended.starts_with(begin));
    listed.or_else(|| needs_a_gpu.then_some(NOT_RUN.len()))
}

#[test]
fn every_command_of_the_site_runs_or_says_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    // Empty, as a newcomer's is.
    std::fs::create_dir(&home).unwrap();
    std::fs::create_dir(folder.path().join("target")).unwrap();
    // With these it is a checkout, whose records are shown.
    for part in ["crates", "docs", "records"] {
        std::os::unix::fs::symlink(root().join(part), folder.path().join(part)).unwrap();
    }
    // What the page about ONNX files calls the reader's model.
    let model = root().join("crates/msdeform-onnx/fixtures/transformers_dynamo.onnx");
    std::fs::copy(model, folder.path().join("model.onnx")).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_msdeform"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());

    let (mut seen, mut used, mut failed) = (Vec::new(), [false; NOT_RUN.len()], Vec::new());
    for page in pages() {
        for command in commands(&std::fs::read_to_string(&page).unwrap()) {
            if let Some(listed) = reason(&command) {
                used.iter_mut().skip(listed).take(1).for_each(|used| *used = true);
                continue;
            }
            // Two pages may say the same, and the second finds what the first one wrote.
            if seen.contains(&command) {
                continue;
            }
            let again = command.contains("--output") && !command.contains("--force");
            let brief = if command.starts_with("msdeform bench") { FOR_A_MOMENT } else { "" };
            let force = if again && command.starts_with("msdeform run") { " --force" } else { "" };
            let mut shell = Command::new("sh");
            shell.args(["-ec", &format!("{command}{brief}{force}")]).current_dir(folder.path());
            shell.env("PATH", &path).env("HOME", &home).env("MSDEFORM_TUNING", "off");
            let output = shell.output().unwrap();
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                failed.push(format!("{}: `{command}`: {}\n{said}", page.display(), output.status));
            }
            seen.push(command);
        }
    }
    assert!(
        failed.is_empty(),
        "run them, or list them in NOT_RUN with a reason:\n{}",
        failed.join("\n")
    );
    assert!(seen.len() >= 12, "only {} commands were run: {seen:?}", seen.len());
    let idle: Vec<_> = NOT_RUN.iter().zip(used).filter(|(_, used)| !used).collect();
    assert!(idle.is_empty(), "no page has them any more: {idle:?}");
    let completions = home.join(".local/share/bash-completion/completions/msdeform");
    assert!(std::fs::read_to_string(completions).unwrap().contains("complete -F"));
    assert!(home.join(".local/share/man/man1/msdeform-bench.1").is_file());
}

#[test]
fn code_of_every_language_has_somebody_who_runs_it() {
    let mut used = [false; RUN_ELSEWHERE.len()];
    for page in pages() {
        let path = page.canonicalize().unwrap();
        let path = path.strip_prefix(root().canonicalize().unwrap()).unwrap().to_str().unwrap();
        for language in languages(&std::fs::read_to_string(&page).unwrap()) {
            let known = RUN_ELSEWHERE
                .iter()
                .position(|(of, begin, _)| *of == language && path.starts_with(begin));
            assert!(language == "sh" || known.is_some(), "{path}: who runs its {language}?");
            if let Some(known) = known {
                used[known] = true;
            }
        }
    }
    let idle: Vec<_> = RUN_ELSEWHERE.iter().zip(used).filter(|(_, used)| !used).collect();
    assert!(idle.is_empty(), "no page has it any more: {idle:?}");
}
