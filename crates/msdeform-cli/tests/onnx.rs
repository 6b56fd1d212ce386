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
