//! The real binary, as scripts and people use it.

#![allow(clippy::unwrap_used, reason = "tests may fail, and helpers of tests too")]

#[path = "processes/command_names.rs"]
mod command_names;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use assert_cmd::Command;
use command_names::COMMANDS;
use msdeform_bench::fixtures::PUBLISHED_FIELDS;
use predicates::prelude::*;
use serde_json::Value;

/// The binary in an empty folder, outside of any checkout, with nothing of this environment that
/// would show in its output.
fn msdeform(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("msdeform"));
    command.current_dir(folder).env_remove("COLUMNS");
    command.env("MSDEFORM_TUNING", "off");
    command
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Standard output of a command that succeeds, as JSON.
fn printed_json(command: &mut Command) -> Value {
    let output = command.assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

/// Standard output as JSON, and nothing on standard error: no progress bar in a pipe.
fn json(arguments: &[&str]) -> Value {
    let folder = folder();
    let output = msdeform(folder.path()).args(arguments).assert().success().stderr("");
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

#[test]
fn help_is_as_reviewed() {
    let folder = folder();
    for command in [""].into_iter().chain(COMMANDS) {
        let words = command.split_whitespace();
        let output = msdeform(folder.path()).args(words).arg("--help").assert().success();
        let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
        let name = if command.is_empty() { "main" } else { command };
        insta::assert_snapshot!(format!("help_{name}"), text);
    }
}

#[test]
fn a_probe_becomes_the_ceilings_of_its_device() {
    let folder = folder();
    let records = folder.path().join("records");
    let arguments = ["probe", "--device", "cpu", "--threads", "1", "--json", "--record=records"];
    let printed = printed_json(msdeform(folder.path()).args(arguments));
    let device = records.join(printed["device"]["slug"].as_str().unwrap());
    let written = std::fs::read_to_string(device.join("ceilings.json")).unwrap();
    let mut written: Value = serde_json::from_str(&written).unwrap();
    assert!(written.as_object_mut().unwrap().remove("checksum").is_some());
    assert_eq!(written, printed);
    let ceilings = printed["ceilings"].as_array().unwrap();
    for name in ["dram_copy", "fma_f32"] {
        let found = ceilings.iter().find(|ceiling| ceiling["name"] == name).unwrap();
        assert!(found["value"].as_f64() > Some(0.0), "{found}");
    }

    let picture = folder.path().join("roofline.svg");
    let analyses = printed_json(
        msdeform(folder.path())
            .args(["analyze", "--workload", "rtdetr_dec", "--dtype", "f16", "--json", "--dir"])
            .args([&records, Path::new("--svg"), &picture]),
    );
    assert_eq!(analyses[0]["workload"], "rtdetr_dec");
    assert!(analyses[0]["predicted_us"].as_f64() > Some(0.0));
    assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg "));
}

#[test]
fn what_tune_finds_is_what_calls_get_until_it_is_stale() {
    let folder = folder();
    let file = folder.path().join("tuning.json");
    let tune = ["tune", "--device", "cpu", "--threads", "1", "--workload", "edge_one_point"];
    let output = msdeform(folder.path())
        .args(tune)
        .args(["--dtype", "f32", "--seconds", "0.2", "--json", "--record=records"])
        .arg("--output")
        .arg(&file)
        .assert()
        .success()
        .stderr(predicate::str::contains("[1/2] edge_one_point f32 forward: "));
    let found: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(found["cases"].as_array().unwrap().len(), 2, "forward and backward");
    assert!(found["cases"][0]["timed"].as_u64() >= Some(2), "every instruction set at least");
    let slug = found["device"]["slug"].as_str().unwrap();
    assert!(folder.path().join("records").join(slug).join("tuned.json").is_file());

    // The slowest choice, so that it cannot be the built-in one.
    let mut tuning: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((&tuning["schema"], &tuning["entries"][0]["threads"]), (&1.into(), &1.into()));
    tuning["entries"][0]["variant"] = "fwd_cpu_scalar".into();
    let bench = |tuning: &Value| {
        std::fs::write(&file, tuning.to_string()).unwrap();
        let arguments =
            ["--workload", "edge_one_point", "--direction", "forward", "--dtype", "f32"];
        let output = msdeform(folder.path())
            .args(["bench", "--device", "cpu", "--threads", "1", "--seconds", "0", "--json"])
            .args(["--no-probe", "--no-verify"])
            .args(arguments)
            .env("MSDEFORM_TUNING", &file)
            .assert()
            .success();
        let record: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
        let measured = record["measurements"].as_array().unwrap().clone();
        let chosen = measured.into_iter().find(|m| m["dispatched"] == true).unwrap();
        let words = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        (chosen["variant"].as_str().unwrap().to_owned(), words, record)
    };
    let (variant, words, record) = bench(&tuning);
    assert_eq!((variant.as_str(), words.as_str()), ("fwd_cpu_scalar", ""));
    assert_eq!(record["device"]["facts"]["tuning"], "2 choices");
    for (field, value, reason) in [
        ("msdeform", "0.0.1", "made by msdeform 0.0.1"),
        ("device", "another CPU", "made on another CPU"),
        ("fingerprint", "x", "kernels have changed"),
    ] {
        let mut stale = tuning.clone();
        stale[field] = value.into();
        let (variant, words, _) = bench(&stale);
        assert_ne!(variant, "fwd_cpu_scalar", "{field}");
        assert!(words.contains("is ignored") && words.contains(reason), "{words}");
    }
}

#[test]
fn a_killed_tune_leaves_its_results_and_names_the_rest() {
    let folder = folder();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_msdeform"))
        .current_dir(folder.path())
        .args(["tune", "--device", "cpu", "--threads", "1", "--dtype", "f32", "--seconds", "0.2"])
        .args(["--workload", "edge_one_point,ddetr_enc", "--record=records"])
        .args(["--output", "tuning.json"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.map(|line| line.unwrap()).find(|line| line.contains("[1/4]"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.is_some_and(|line| line.contains("edge_one_point f32 forward")));

    let read = |path: &Path| -> Value {
        serde_json::from_slice(&std::fs::read(folder.path().join(path)).unwrap()).unwrap()
    };
    let device = std::fs::read_dir(folder.path().join("records")).unwrap().next().unwrap();
    let record = read(&device.unwrap().path().join("tuned.json"));
    let cases = record["cases"].as_array().unwrap();
    let unfinished = record["unfinished"].as_array().unwrap();
    assert!(!cases.is_empty() && cases.len() + unfinished.len() == 4, "{record}");
    assert_eq!(unfinished.last().unwrap()["call"], "ddetr_enc f32 backward");
    let tuning = read(Path::new("tuning.json"));
    assert!(tuning["entries"].as_array().unwrap().len() >= cases.len());
}

#[test]
fn tune_refuses_what_makes_no_sense() {
    let folder = folder();
    for (arguments, words) in [
        (&["--seconds=-1"][..], "not a duration"),
        (&["--locations", "local,uniform"], "one kind"),
        (&["--variant", "no_such"], "no_such"),
    ] {
        let mut command = msdeform(folder.path());
        let failed = command.args(["tune", "--device", "cpu"]).args(arguments).assert().code(2);
        let message = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn an_analysis_without_ceilings_says_how_to_make_one() {
    let folder = folder();
    let output = msdeform(folder.path()).args(["analyze"]).assert().failure();
    let message = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(message.contains("msdeform probe --record"), "{message}");
}

#[test]
fn counters_are_read_and_a_missing_profiler_is_named() {
    let folder = folder();
    let table = folder.path().join("ncu.csv");
    let text = "\"ID\",\"Kernel Name\",\"l1tex__t_sector_hit_rate.pct\"\n\"\",\"\",\"%\"\n\
                \"0\",\"fwd_x\",\"81.5\"\n";
    std::fs::write(&table, text).unwrap();
    let read = msdeform(folder.path()).args(["counters", "--json", "--csv"]).arg(&table).assert();
    let kernels: Value = serde_json::from_slice(&read.success().get_output().stdout).unwrap();
    assert_eq!(kernels[0]["readings"][0]["name"], "l1_hit_percent");
    assert_eq!(kernels[0]["readings"][0]["value"], 81.5);
    std::fs::write(&table, "no table").unwrap();
    let broken = msdeform(folder.path()).args(["counters", "--csv"]).arg(&table).assert().failure();
    assert!(String::from_utf8_lossy(&broken.get_output().stderr).contains("--page raw"));
    let missing = msdeform(folder.path())
        .args(["counters", "--workload", "ddetr_dec"])
        .env("PATH", "")
        .env_remove("MSDEFORM_NCU")
        .assert()
        .failure();
    assert!(String::from_utf8_lossy(&missing.get_output().stderr).contains("ncu"));
}

#[test]
fn variants_are_listed_for_scripts_with_the_promised_fields() {
    let list = json(&["variants", "--json"]);
    let list = list.as_array().unwrap();
    assert!(!list.is_empty());
    for variant in list {
        for field in ["id", "direction", "device", "dtypes", "layouts", "origin", "idea"] {
            assert!(!variant[field].is_null(), "{field} is missing in {variant}");
        }
    }
    let available = |direction: &str| {
        list.iter().any(|v| v["direction"] == direction && v["available"] == true)
    };
    assert!(available("forward") && available("backward"));
    let forward = json(&["variants", "--json", "--direction", "forward"]);
    assert!(forward.as_array().unwrap().iter().all(|v| v["direction"] == "forward"));
}

#[test]
fn workloads_are_listed_with_their_reason() {
    let list = json(&["workloads", "--json"]);
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|w| w["name"].as_str().unwrap()).collect();
    for name in ["ddetr_enc", "ddetr_dec", "bevformer_sca", "seed", "seed_6x8", "edge_hostile"] {
        assert!(names.contains(&name), "{name} is missing");
    }
    let folder = folder();
    msdeform(folder.path())
        .arg("workloads")
        .assert()
        .success()
        .stdout(predicate::str::contains("one pixel, one row and one column"));
}

#[test]
fn verify_compares_every_tensor_and_counts_what_it_skips() {
    let report = json(&["verify", "--workload", "edge_one_pixel,edge_no_queries", "--json"]);
    assert_eq!(report["passed"], true);
    let checked = report["checked"].as_array().unwrap();
    assert!(checked.iter().all(|check| check["pass"] == true));
    let backward = checked.iter().find(|check| check["direction"] == "backward").unwrap();
    let tensors: Vec<&str> = backward["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| tensor["tensor"].as_str().unwrap())
        .collect();
    assert_eq!(tensors, ["grad_value", "grad_locations", "grad_weights"]);
    for field in ["elements", "max_abs", "max_rel", "rel_l2", "bound"] {
        assert!(backward["tensors"][0][field].is_number(), "{field}");
    }
    // Every CPU lacks one of the instruction sets.
    assert!(!report["skipped"].as_array().unwrap().is_empty());
    assert!(report["skipped"][0]["reason"].as_str().unwrap().contains("CPU"));
}

#[test]
fn commands_run_the_fused_operator_and_name_its_rows() {
    let cases = "edge_one_point,edge_point_lists,edge_channels_33,edge_hostile";
    let verify = ["verify", "--device", "cpu", "--from-offsets", "--json", "--workload", cases];
    let report = json(&verify);
    let checked = report["checked"].as_array().unwrap();
    assert!(checked.iter().all(|check| check["pass"] == true), "{report}");
    let tensors = |check: &Value| {
        let tensors = check["tensors"].as_array().unwrap().clone();
        tensors
            .iter()
            .map(|tensor| tensor["tensor"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let backward = checked.iter().find(|check| check["direction"] == "backward").unwrap();
    let gradients = ["grad_value", "grad_references", "grad_offsets", "grad_logits"];
    assert_eq!(tensors(backward), gradients);
    let compared = |check: &Value| check["tensors"][1]["elements"].as_u64();
    assert!(checked.iter().any(|check| compared(check) > Some(0)), "references are compared");

    let bench =
        ["bench", "--device", "cpu", "--from-offsets", "--json", "--workload", "edge_one_point"];
    let record = json(&[&bench[..], &["--seconds", "0", "--no-probe", "--training"]].concat());
    for measured in record["measurements"].as_array().unwrap() {
        assert_eq!(measured["workload"], "edge_one_point from offsets");
        assert!(measured["rel_l2"].as_f64() < Some(1e-2), "{measured}");
    }
    // What is timed is what models ask for, and just that is compared.
    let checked = record["verification"]["checked"].as_array().unwrap();
    let backward = checked.iter().find(|check| check["direction"] == "backward").unwrap();
    assert_eq!(tensors(backward), ["grad_value", "grad_offsets", "grad_logits"]);
    let folder = folder();
    let ledger = ["verify", "--from-offsets", "--ledger", "--device", "cpu"];
    msdeform(folder.path()).args(ledger).assert().code(2);
}

#[test]
fn a_part_of_what_is_not_divided_is_refused() {
    let folder = folder();
    for (part, why) in [("2/2", "--models"), ("3/2", "not a part")] {
        let verify = ["verify", "--device", "cpu", "--workload", "edge_one_point", "--part", part];
        let refused = msdeform(folder.path()).args(verify).assert().code(2);
        refused.stderr(predicate::str::contains(why));
    }
}

#[test]
fn verify_takes_a_fresh_seed_and_says_which() {
    let first = json(&["verify", "--workload", "edge_one_point", "--seed", "random", "--json"]);
    let second = json(&["verify", "--workload", "edge_one_point", "--seed", "random", "--json"]);
    assert_ne!(first["seed"], second["seed"]);
    let folder = folder();
    msdeform(folder.path())
        .args(["verify", "--workload", "edge_one_point", "--dtype", "f32", "--seed", "7", "-v"])
        .assert()
        .success()
        .stdout(predicate::str::contains("seed 7").and(predicate::str::contains("pass")));
}

#[test]
fn bench_gives_raw_samples_and_the_error() {
    let record = json(&[
        "bench",
        "--workload",
        "edge_channels_33",
        "--dtype",
        "f16",
        "--seconds",
        "0.01",
        "--threads",
        "1",
        "--batch",
        "1",
        "--queries",
        "50",
        "--json",
    ]);
    let measurements = record["measurements"].as_array().unwrap();
    assert!(measurements.len() >= 2, "at least forward and backward");
    for m in measurements {
        assert_eq!((&m["batch"], &m["queries"], &m["threads"]), (&1.into(), &50.into(), &1.into()));
        assert!(m["samples_us"].as_array().unwrap().len() >= 5);
        assert!(m["rel_l2"].as_f64().unwrap() <= 5e-4);
        for field in ["median_us", "mad_us", "samples", "gathered_bytes", "operations"] {
            assert!(m[field].as_f64().unwrap() >= 0.0, "{field}");
        }
    }
    assert!(record["device"]["bandwidth"]["copy_gb_per_s"].as_f64().unwrap() > 0.0);
    let version = msdeform(folder().path()).arg("--version").assert().success();
    let version = String::from_utf8(version.get_output().stdout.clone()).unwrap();
    let commit = record["commit"].as_str().unwrap();
    assert!(version.contains(&commit[..commit.len().min(9)]), "{version} names {commit}");
    assert_eq!(version.contains("-dirty"), record["dirty"].as_bool().unwrap(), "{version}");
}

#[test]
fn a_bench_that_is_killed_leaves_the_record_of_what_it_timed() {
    let folder = folder();
    let mut bench = std::process::Command::new(assert_cmd::cargo::cargo_bin!("msdeform"));
    bench.current_dir(folder.path()).env("MSDEFORM_TUNING", "off").stdout(Stdio::null());
    bench.args(["bench", "--device", "cpu", "--threads", "1", "--variant", "fwd_cpu_scalar"]);
    // The second takes seconds.
    bench.args(["--workload", "edge_one_point,ddetr_enc", "--dtype", "f32", "--no-probe"]);
    bench.args(["--seconds", "0", "--direction", "forward", "--record=records"]);
    let mut bench = bench.spawn().unwrap();
    let find = |place: &Path| {
        let entries = std::fs::read_dir(place).ok()?;
        let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.find(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'))
    };
    let saved = || find(&find(&folder.path().join("records"))?);
    while saved().is_none() && bench.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    bench.kill().unwrap();
    bench.wait().unwrap();
    let text = std::fs::read_to_string(saved().unwrap().join("record.json")).unwrap();
    let record: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(record["unfinished_cases"], 1);
    assert_eq!(record["measurements"][0]["workload"], "edge_one_point");
}

#[test]
fn bench_times_a_forward_and_a_backward_as_one_training_step() {
    let step = ["bench", "--training", "--device", "cpu", "--workload", "edge_one_point"];
    let quick = ["--dtype", "f32", "--seconds", "0", "--no-probe", "--json"];
    let record = json(&[&step[..], &quick[..]].concat());
    let measurements = record["measurements"].as_array().unwrap();
    assert_eq!(measurements.len(), 1, "one step, not every variant");
    assert_eq!(measurements[0]["direction"], "training");
    let variant = measurements[0]["variant"].as_str().unwrap();
    assert!(variant.starts_with("fwd_cpu_") && variant.contains("+bwd_cpu_"), "{variant}");
    assert!(measurements[0]["rel_l2"].as_f64().unwrap() <= 1e-5, "both halves were verified");

    let named = ["--variant", "fwd_cpu_scalar,bwd_cpu_scalar"];
    let record = json(&[&step[..], &named[..], &quick[..]].concat());
    assert_eq!(record["measurements"][0]["variant"], "fwd_cpu_scalar+bwd_cpu_scalar");
}

#[test]
fn the_main_job_prints_one_table_and_says_where_its_record_went() {
    let folder = folder();
    let output = msdeform(folder.path())
        .args(["--workload", "edge_one_point", "--seconds", "0.01", "--no-probe", "--record"])
        .assert()
        .success()
        .stderr("");
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(text.contains("edge_one_point") && text.contains("backward"), "{text}");
    assert!(text.contains(" 0 failed"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    let place = text.lines().find_map(|line| line.strip_prefix("Record: ")).unwrap();
    assert!(place.starts_with("msdeform-records"), "{place}");
    assert!(folder.path().join(place).join("record.json").is_file());
    assert!(folder.path().join(place).join("summary.md").is_file());

    let figures = printed_json(msdeform(folder.path()).args(["records", "--json"]));
    let figure = &figures[0];
    for field in PUBLISHED_FIELDS {
        assert!(!figure[field].is_null(), "{field} is missing in {figure}");
    }
    msdeform(folder.path())
        .args(["records", "--workload", "edge_one_point", "--dtype", "bf16"])
        .assert()
        .success()
        .stdout(predicate::str::contains("bf16").and(predicate::str::contains("f32 ").not()));
}

#[test]
fn the_main_job_writes_where_told_or_not_at_all() {
    let folder = folder();
    let arguments = ["--workload", "edge_one_point", "--seconds", "0", "--no-probe", "--json"];
    let document = printed_json(msdeform(folder.path()).args(arguments).arg("--record=evidence"));
    let place = document["record_folder"].as_str().unwrap();
    assert!(place.starts_with("evidence"), "{place}");
    assert!(folder.path().join(place).is_dir());

    let empty = tempfile::tempdir().unwrap();
    msdeform(empty.path()).args(arguments).assert().success();
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
}

#[test]
fn merged_runs_name_each_run_and_refuse_edited_records() {
    let folder = folder();
    let bench = |variant: &str| {
        let bench = ["bench", "--device", "cpu", "--threads", "1", "--workload", "edge_one_point"];
        let quick = ["--dtype", "f32", "--seconds", "0", "--no-probe", "--json", "--record=runs"];
        msdeform(folder.path())
            .args(bench)
            .args(["--variant", variant])
            .args(quick)
            .assert()
            .success();
    };
    bench("fwd_cpu_scalar");
    bench("bwd_cpu_scalar");
    let device =
        std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let mut runs: Vec<_> =
        std::fs::read_dir(&device).unwrap().map(|run| run.unwrap().path()).collect();
    runs.sort();
    assert_eq!(runs.len(), 2);
    let merge = || {
        let mut command = msdeform(folder.path());
        command.args(["records", "merge", "--json"]).args(&runs);
        command
    };
    merge().assert().code(2).stderr(predicate::str::contains("--record"));
    let output = merge().arg("--record=merged").assert().success();
    let written: Vec<String> = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let file = folder.path().join(&written[0]).join("record.json");
    let merged: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let commands: Vec<&str> = merged["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["command"].as_str().unwrap())
        .collect();
    assert!(commands[0].contains("fwd_cpu_scalar") && commands[1].contains("bwd_cpu_scalar"));
    assert!(commands.iter().all(|command| command.ends_with("--record")), "{commands:?}");

    let text = std::fs::read_to_string(runs[0].join("record.json")).unwrap();
    std::fs::write(runs[0].join("record.json"), text.replace("\"dirty\"", "\"Dirty\"")).unwrap();
    merge()
        .arg("--record=merged")
        .assert()
        .code(3)
        .stderr(predicate::str::contains("edited after a command wrote it"));
}

/// What the ledger of the tree has open is tested next to the ledger, in msdeform-report.
#[test]
fn a_ledger_that_does_not_exist_is_named() {
    let folder = folder();
    for action in [&[][..], &["renew"], &["merge", "other.json"]] {
        msdeform(folder.path())
            .arg("ledger")
            .args(action)
            .args(["--gpu", "none"])
            .assert()
            .code(3)
            .stderr(predicate::str::contains("--gpu names another"));
    }
}

#[test]
fn records_that_no_manifest_names_are_shown_only_when_asked_for() {
    let folder = folder();
    msdeform(folder.path())
        .args(["--workload", "edge_one_point", "--seconds", "0", "--no-probe", "--record"])
        .assert()
        .success();
    let count = |arguments: &[&str]| {
        let figures =
            printed_json(msdeform(folder.path()).args(["records", "--json"]).args(arguments));
        figures.as_array().unwrap().len()
    };
    assert!(count(&[]) > 0, "all of them, where there is no manifest");
    let manifest = folder.path().join("msdeform-records/manifest.json");
    std::fs::write(manifest, r#"{"schema": 1, "releases": {}}"#).unwrap();
    assert_eq!(count(&[]), 0);
    assert!(count(&["--local"]) > 0);
    msdeform(folder.path())
        .arg("records")
        .assert()
        .success()
        .stderr(predicate::str::contains("--local adds them"));
}

#[test]
fn a_workload_of_ones_own_is_a_file() {
    let folder = folder();
    let text = "name = \"mine\"\nwhy = \"my shape\"\ntags = []\nbatch = 1\nheads = 2\nchannels = 8\n\
                levels = [[6, 5]]\npoints = 2\nqueries = 9\nreference_points = \"uniform\"\n\
                locations = [\"uniform\"]\nlayouts = [\"interleaved\"]\n";
    std::fs::write(folder.path().join("mine.toml"), text).unwrap();
    msdeform(folder.path())
        .args([
            "bench",
            "--workload",
            "mine.toml",
            "--seconds",
            "0",
            "--no-probe",
            "--dtype",
            "f32",
        ])
        .assert()
        .success()
        .stdout(predicate::str::contains("mine: N=1 M=2 D=8 Lq=9 (6x5) P=2 f32 interleaved"));
}

#[test]
fn mistakes_have_their_exit_code_and_say_what_is_known() {
    let folder = folder();
    let broken = folder.path().join("broken.toml");
    std::fs::write(&broken, "name = 3").unwrap();
    let cases: [(&[&str], i32, &str); 14] = [
        (&["bench", "--workload", "ddetr_encs"], 2, "did you mean `ddetr_enc`?"),
        (&["bench", "--workload", "broken.toml"], 2, "broken.toml"),
        (&["bench", "--workload", "absent.toml"], 2, "absent.toml"),
        (&["bench", "--variant", "fwd_magic"], 2, "fwd_cpu_scalar"),
        (&["bench", "--dtype", "int8"], 2, "f32, f16, bf16"),
        (&["bench", "--dtype", "f64"], 2, "no device computes f64"),
        (&["bench", "--layout", "planar"], 2, "head_major_padded"),
        (&["bench", "--locations", "near"], 2, "local, uniform"),
        (&["bench", "--device", "tpu"], 2, "cuda:0"),
        (&["bench", "--seconds=-1"], 2, "--seconds"),
        (&["bench", "--mode", "exact"], 2, "fast, deterministic"),
        (&["bench", "--training", "--direction", "forward"], 2, "--direction"),
        (&["nonsense"], 2, "nonsense"),
        (&["records", "--dir", "nowhere"], 3, "nowhere"),
    ];
    for (arguments, code, message) in cases {
        msdeform(folder.path())
            .args(arguments)
            .assert()
            .code(code)
            .stdout("")
            .stderr(predicate::str::contains(message));
    }
}

#[test]
fn records_that_cannot_be_read_or_written_name_their_path() {
    let folder = folder();
    std::fs::write(folder.path().join("file"), "").unwrap();
    msdeform(folder.path())
        .args(["--workload", "edge_one_point", "--seconds", "0", "--no-probe", "--record=file"])
        .assert()
        .code(3)
        .stderr(predicate::str::contains("file"));
    let run = folder.path().join("records/chip/2026-01-01-0");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("record.json"), "{").unwrap();
    msdeform(folder.path())
        .args(["records", "--dir", "records"])
        .assert()
        .code(3)
        .stderr(predicate::str::contains("record.json"));
}

#[test]
fn one_thread_and_no_threads() {
    let folder = folder();
    let arguments =
        ["bench", "--workload", "edge_one_point", "--seconds", "0", "--no-probe", "--dtype", "f32"];
    msdeform(folder.path())
        .args(arguments)
        .args(["--threads", "1"])
        .assert()
        .success()
        .stdout(predicate::str::contains(", 1 thread\n"));
    msdeform(folder.path())
        .args(arguments)
        .args(["--threads", "0"])
        .assert()
        .code(2)
        .stderr(predicate::str::contains("at least one"));
}
