//! `msdeform onnx` on models that PyTorch exported.

#![allow(clippy::unwrap_used, reason = "tests may fail, and helpers of tests too")]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use serde_json::Value;

fn msdeform(folder: &Path, arguments: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("msdeform"));
    command.current_dir(folder).env_remove("COLUMNS").arg("onnx").args(arguments).assert()
}

/// A folder with a model in it.
fn folder(fixture: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../msdeform-onnx/fixtures").join(fixture);
    let model = folder.path().join("model.onnx");
    std::fs::copy(source, &model).unwrap();
    (folder, model)
}

#[test]
fn help_is_as_reviewed() {
    let (folder, _) = folder("rfdetr_torchscript.onnx");
    for command in ["inspect", "rewrite"] {
        let output = msdeform(folder.path(), &[command, "--help"]).success();
        let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
        insta::assert_snapshot!(format!("help_onnx_{command}"), text);
    }
}

#[test]
fn sites_are_listed_for_people_and_for_scripts() {
    let (folder, _) = folder("point_lists_torchscript.onnx");
    let listed = msdeform(folder.path(), &["inspect", "model.onnx"]).success();
    let text = String::from_utf8(listed.get_output().stdout.clone()).unwrap();
    for part in ["gridsample", "batch", "queries", "6x4 3x2 2x1", "3 1 2", "/query"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let listed = msdeform(folder.path(), &["inspect", "model.onnx", "--json"]).success();
    let report: Value = serde_json::from_slice(&listed.get_output().stdout).unwrap();
    assert_eq!(report["sites"][0]["points"], serde_json::json!([3, 1, 2]));
    assert_eq!(report["sites"][0]["form"], "gridsample");
}

#[test]
fn a_model_is_rewritten_beside_itself_and_back() {
    let (folder, model) = folder("transformers_dynamo.onnx");
    let before = std::fs::read(&model).unwrap();
    msdeform(folder.path(), &["rewrite", "model.onnx", "--to", "tensorrt"])
        .success()
        .stdout(predicate::str::contains("gridsample -> tensorrt, within"))
        .stdout(predicate::str::contains("model.tensorrt.onnx"));
    assert_eq!(std::fs::read(&model).unwrap(), before);
    let back = ["rewrite", "model.tensorrt.onnx", "--to", "gridsample", "-o", "back.onnx"];
    msdeform(folder.path(), &back).success();
    let again = msdeform(folder.path(), &back).code(2);
    again.stderr(predicate::str::contains("back.onnx"));
    msdeform(folder.path(), &[&back[..], &["--force"]].concat()).success();
    let same = ["rewrite", "back.onnx", "--to", "gridsample", "-o", "same.onnx"];
    msdeform(folder.path(), &same).success().stdout(predicate::str::contains("gridsample already"));
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert_eq!(read("same.onnx"), read("back.onnx"));
}

#[test]
fn what_cannot_be_meant_or_done_has_its_code_and_its_words() {
    let (folder, model) = folder("point_lists_dynamo.onnx");
    let before = std::fs::read(&model).unwrap();
    let itself = ["rewrite", "model.onnx", "--to", "msdeform", "--force", "-o", "./model.onnx"];
    msdeform(folder.path(), &itself).code(2).stderr(predicate::str::contains("the model itself"));
    assert_eq!(std::fs::read(&model).unwrap(), before);
    msdeform(folder.path(), &["rewrite", "model.onnx", "--to", "tensorrt"])
        .code(1)
        .stdout(predicate::str::contains("[3, 1, 2] points"))
        .stderr(predicate::str::contains("no attention could be written as tensorrt"));
    assert!(!folder.path().join("model.tensorrt.onnx").exists());
    let unknown = ["rewrite", "model.onnx", "--to", "coreml"];
    msdeform(folder.path(), &unknown).code(2).stderr(predicate::str::contains("known: tensorrt"));
    std::fs::write(&model, "text").unwrap();
    let text = msdeform(folder.path(), &["inspect", "model.onnx"]).code(3);
    text.stderr(predicate::str::contains("no ONNX model"));
    msdeform(folder.path(), &["inspect", "absent.onnx"]).code(3);
}
