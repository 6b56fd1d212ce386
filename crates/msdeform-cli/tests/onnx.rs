//! `msdeform onnx` on models that PyTorch exported.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::shared::{expect, msdeform, printed, printed_json};

fn onnx(folder: &TempDir, arguments: &str) -> Command {
    msdeform(folder, &format!("onnx {arguments}"))
}

/// A folder with a model in it.
fn folder(fixture: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../msdeform-onnx/fixtures").join(fixture);
    let model = folder.path().join("model.onnx");
    std::fs::copy(source, &model).unwrap();
    (folder, model)
}

#[test]
fn sites_are_listed_for_people_and_for_scripts() {
    let (folder, _) = folder("point_lists_torchscript.onnx");
    let words = ["gridsample", "batch", "queries", "6x4 3x2 2x1", "3 1 2", "/query"];
    printed(onnx(&folder, "inspect model.onnx"), &words);
    let report = printed_json(onnx(&folder, "inspect model.onnx --json"));
    assert_eq!(report["sites"][0]["points"], serde_json::json!([3, 1, 2]));
    assert_eq!(report["sites"][0]["form"], "gridsample");
}

#[test]
fn a_model_is_rewritten_beside_itself_and_back() {
    let (folder, model) = folder("transformers_dynamo.onnx");
    let before = std::fs::read(&model).unwrap();
    let words = ["gridsample -> tensorrt, within", "model.tensorrt.onnx"];
    printed(onnx(&folder, "rewrite model.onnx --to tensorrt"), &words);
    assert_eq!(std::fs::read(&model).unwrap(), before);
    let back = || onnx(&folder, "rewrite model.tensorrt.onnx --to gridsample -o back.onnx");
    printed(back(), &[]);
    expect(back(), 2, &["back.onnx"]);
    printed(back().arg("--force"), &[]);
    let same = onnx(&folder, "rewrite back.onnx --to gridsample -o same.onnx");
    printed(same, &["gridsample already"]);
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert_eq!(read("same.onnx"), read("back.onnx"));
}

#[test]
fn a_runtime_gets_the_form_that_it_computes_correctly_and_the_reason() {
    let (folder, _) = folder("point_lists_dynamo.onnx");
    let words =
        ["gather for ort-web: ", "WebGPU", "gridsample -> gather, within", "model.ort-web.onnx"];
    printed(onnx(&folder, "rewrite model.onnx --for ort-web"), &words);
    let report = printed_json(onnx(&folder, "inspect model.ort-web.onnx --json"));
    assert_eq!(report["sites"][0]["form"], "gather");
    printed(onnx(&folder, "rewrite model.onnx --for tensorrt"), &["gridsample -> gather"]);
    let words = ["more axes than --rank allows", "around the new nodes"];
    printed(onnx(&folder, "rewrite model.onnx --to gather --rank 3"), &words);
    expect(onnx(&folder, "rewrite model.onnx --to gather --for ort"), 2, &["--for"]);
    expect(onnx(&folder, "rewrite model.onnx"), 2, &["--to"]);
    expect(onnx(&folder, "rewrite model.onnx --for coreai"), 2, &["known: tensorrt, openvino"]);
}

#[test]
fn a_check_says_what_to_install_and_passes_the_code_of_python_on() {
    let (folder, model) = folder("transformers_dynamo.onnx");
    let check = |python: &str| {
        let mut command = onnx(&folder, "check model.onnx --runtime onnxruntime --json");
        command.env("MSDEFORM_PYTHON", python);
        command
    };
    expect(check("no-such-python"), 3, &["no-such-python", "pip install msdeform onnxruntime"]);
    let python = folder.path().join("python.sh");
    for (code, words) in [(0, ""), (1, "differs"), (2, "did not start"), (3, "nothing was checked")]
    {
        write_program(&python, &format!("echo \"$@\"; exit {code}"));
        let output = expect(check(python.to_str().unwrap()), code, &[words]);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains("\n model.onnx --runtime onnxruntime --json"), "{printed}");
    }
    // Python looks into the folder first.
    std::fs::create_dir(folder.path().join("msdeform")).unwrap();
    std::fs::write(folder.path().join("msdeform/__init__.py"), "").unwrap();
    expect(check("python3"), 3, &["No module named 'msdeform.onnx'", "pip install msdeform"]);
    std::fs::write(&model, "text").unwrap();
    expect(check("no-such-python"), 3, &["no ONNX model"]);
}

fn write_program(path: &Path, body: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A model whose graph (field 7) has one more tensor (field 5), the numbers of which lie in another file.
fn with_far_weights(model: &[u8]) -> Vec<u8> {
    fn number(bytes: &[u8], at: &mut usize) -> usize {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[*at];
            *at += 1;
            value |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    fn field(key: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![key];
        let mut length = content.len();
        while length >= 0x80 {
            bytes.push(length as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        [bytes, content.to_vec()].concat()
    }
    let entry = [field(10, b"location"), field(18, b"weights.bin")].concat();
    let tensor =
        [&[8, 1, 16, 1][..], &field(0x42, b"far"), &field(0x6a, &entry), &[0x70, 1]].concat();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < model.len() {
        let start = at;
        let key = number(model, &mut at);
        let content = number(model, &mut at);
        if key & 7 == 2 {
            at += content;
        }
        if key == 0x3a {
            let graph = [&model[at - content..at], &field(0x2a, &tensor)].concat();
            out.extend(field(0x3a, &graph));
        } else {
            out.extend(&model[start..at]);
        }
    }
    out
}

#[test]
fn weights_that_are_missing_are_named_and_nothing_is_written() {
    let (folder, model) = folder("transformers_dynamo.onnx");
    std::fs::write(&model, with_far_weights(&std::fs::read(&model).unwrap())).unwrap();
    let rewrite = || onnx(&folder, "rewrite model.onnx --to gather");
    expect(rewrite(), 3, &["weights are missing", "weights.bin", "nothing was written"]);
    assert!(!folder.path().join("model.gather.onnx").exists());
    // Weights in other files are not read: 3 GiB of them take no memory.
    let weights = std::fs::File::create(folder.path().join("weights.bin")).unwrap();
    weights.set_len(3 << 30).unwrap();
    printed(rewrite(), &["gridsample -> gather"]);
}

#[test]
fn a_model_of_more_than_two_gigabytes_is_refused_with_advice() {
    let (folder, model) = folder("transformers_dynamo.onnx");
    std::fs::File::options().write(true).open(&model).unwrap().set_len(3 << 30).unwrap();
    let words = ["model.onnx", "is larger than 2147483648 bytes", "save_as_external_data"];
    expect(onnx(&folder, "inspect model.onnx"), 3, &words);
    expect(onnx(&folder, "rewrite model.onnx --to gather"), 3, &words);
    assert!(!folder.path().join("model.gather.onnx").exists());
}

#[test]
fn what_cannot_be_meant_or_done_has_its_code_and_its_words() {
    let (folder, model) = folder("point_lists_dynamo.onnx");
    let before = std::fs::read(&model).unwrap();
    let refused = |arguments, code, words| expect(onnx(&folder, arguments), code, &[words]);
    refused("rewrite model.onnx --to msdeform --force -o ./model.onnx", 2, "the model itself");
    assert_eq!(std::fs::read(&model).unwrap(), before);
    let words = "no attention could be written as tensorrt";
    let output = refused("rewrite model.onnx --to tensorrt", 1, words);
    let reason = String::from_utf8(output.stdout).unwrap();
    assert!(reason.contains("[3, 1, 2] points"), "{reason}");
    assert!(!folder.path().join("model.tensorrt.onnx").exists());
    refused("rewrite model.onnx --to coreml", 2, "known: tensorrt");
    std::fs::write(&model, "text").unwrap();
    refused("inspect model.onnx", 3, "no ONNX model");
    refused("inspect absent.onnx", 3, "absent.onnx");
}
