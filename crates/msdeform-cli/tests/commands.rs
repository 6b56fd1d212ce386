//! The real binary, as scripts and people use it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail, and helpers of tests too")]

#[cfg(unix)]
mod documents;
mod onnx;
mod run;
mod shared;
mod warm;

use std::path::{Path, PathBuf};

use msdeform_lab::fixtures::PUBLISHED_FIELDS;
use serde_json::Value;
use shared::{HUGE, commands, expect, folder, msdeform, printed, printed_json, read_json, strings};

/// Standard output as JSON, and nothing on standard error: no progress bar in a pipe.
#[track_caller]
fn json(arguments: &str) -> Value {
    let output = expect(msdeform(&folder(), arguments), 0, &[]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `bench` or the main job on the smallest workload, for a moment.
const QUICK: &str = "--workload edge_one_point --seconds 0 --no-probe";

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn help_is_as_reviewed() {
    for command in
        [""].into_iter().chain(commands()).chain(["onnx inspect", "onnx rewrite", "onnx check"])
    {
        let text = printed(msdeform(&folder(), command).arg("--help"), &[]);
        let name = if command.is_empty() { "main".to_owned() } else { command.replace(' ', "_") };
        insta::assert_snapshot!(format!("help_{name}"), text);
    }
}

#[test]
fn a_probe_becomes_the_ceilings_of_its_device() {
    let folder = folder();
    let records = folder.path().join("records");
    let probe = "probe --device cpu --threads 1 --json --record=records";
    let ceilings = printed_json(msdeform(&folder, probe));
    let device = records.join(ceilings["device"]["slug"].as_str().unwrap());
    let mut written = read_json(&device.join("ceilings.json"));
    assert!(written.as_object_mut().unwrap().remove("checksum").is_some());
    assert_eq!(written, ceilings);
    let ceilings = ceilings["ceilings"].as_array().unwrap();
    for name in ["dram_copy", "fma_f32"] {
        let found = ceilings.iter().find(|ceiling| ceiling["name"] == name).unwrap();
        assert!(found["value"].as_f64() > Some(0.0), "{found}");
    }

    let analyze = "analyze --workload rtdetr_dec --dtype f16 --json --dir records --svg roof.svg";
    let analyses = printed_json(msdeform(&folder, analyze));
    assert_eq!(analyses[0]["workload"], "rtdetr_dec");
    assert!(analyses[0]["predicted_us"].as_f64() > Some(0.0));
    let picture = std::fs::read_to_string(folder.path().join("roof.svg")).unwrap();
    assert!(picture.starts_with("<svg "));
}

#[test]
fn what_tune_finds_is_what_calls_get_until_it_is_stale() {
    let folder = folder();
    let file = folder.path().join("tuning.json");
    let tune = "tune --device cpu --threads 1 --workload edge_one_point --dtype f32 \
                --seconds 0.2 --json --record=records --output tuning.json";
    let words = ["[1/2] edge_one_point f32 forward: "];
    let output = expect(msdeform(&folder, tune), 0, &words);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["cases"].as_array().unwrap().len(), 2, "forward and backward");
    assert!(found["cases"][0]["timed"].as_u64() >= Some(2), "every instruction set at least");
    let slug = found["device"]["slug"].as_str().unwrap();
    assert!(folder.path().join("records").join(slug).join("tuned.json").is_file());

    // The slowest choice, so that it cannot be the built-in one.
    let mut tuning = read_json(&file);
    assert_eq!((&tuning["schema"], &tuning["entries"][0]["threads"]), (&1.into(), &1.into()));
    tuning["entries"][0]["variant"] = "fwd_cpu_scalar".into();
    let bench = |tuning: &Value| {
        std::fs::write(&file, tuning.to_string()).unwrap();
        let bench = "bench --device cpu --threads 1 --json --no-verify --direction forward";
        let mut bench = msdeform(&folder, &format!("{bench} --dtype f32 {QUICK}"));
        let output = expect(bench.env("MSDEFORM_TUNING", &file), 0, &[]);
        let record: Value = serde_json::from_slice(&output.stdout).unwrap();
        let measured = record["measurements"].as_array().unwrap().clone();
        let chosen = measured.into_iter().find(|m| m["dispatched"] == true).unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        (chosen["variant"].as_str().unwrap().to_owned(), words, record)
    };
    let (variant, words, record) = bench(&tuning);
    assert_eq!((variant.as_str(), words.as_str()), ("fwd_cpu_scalar", ""));
    assert_eq!(record["device"]["facts"]["tuning"], "2 choices");
    tuning["msdeform"] = "0.0.1".into();
    let (variant, words, _) = bench(&tuning);
    assert_ne!(variant, "fwd_cpu_scalar");
    assert!(words.contains("is ignored: it was made by msdeform 0.0.1"), "{words}");
}

#[test]
fn what_ends_a_run_takes_no_result_back() {
    let folder = folder();
    std::fs::write(folder.path().join("huge.toml"), HUGE).unwrap();
    let run = |command: &str| {
        let options = "--device cpu --threads 1 --dtype f32 --workload edge_one_point,huge.toml";
        let ended = msdeform(&folder, &format!("{command} {options}"));
        expect(ended, 3, &["huge", "of memory"]);
    };
    run("bench --seconds 0 --no-probe --direction forward --record=timed");
    let record = &entries(&entries(&folder.path().join("timed"))[0])[0];
    let record = read_json(&record.join("record.json"));
    assert_eq!(record["unfinished_cases"], 1);
    assert_eq!(record["measurements"][0]["workload"], "edge_one_point");

    run("tune --seconds 0.2 --record=tuned --output tuning.json");
    let record = read_json(&entries(&folder.path().join("tuned"))[0].join("tuned.json"));
    assert_eq!(record["cases"].as_array().unwrap().len(), 2);
    let unfinished = strings(&record["unfinished"], "call");
    assert_eq!(unfinished, ["huge f32 forward", "huge f32 backward"]);
    let tuning = read_json(&folder.path().join("tuning.json"));
    assert_eq!(tuning["entries"].as_array().unwrap().len(), 2);
}

#[test]
fn counters_are_read_and_a_missing_profiler_is_named() {
    let folder = folder();
    let table = folder.path().join("ncu.csv");
    let text = "\"ID\",\"Kernel Name\",\"l1tex__t_sector_hit_rate.pct\"\n\"\",\"\",\"%\"\n\
                \"0\",\"fwd_x\",\"81.5\"\n";
    std::fs::write(&table, text).unwrap();
    let read = || msdeform(&folder, "counters --json --csv ncu.csv");
    let kernels = printed_json(read());
    assert_eq!(kernels[0]["readings"][0]["name"], "l1_hit_percent");
    assert_eq!(kernels[0]["readings"][0]["value"], 81.5);
    std::fs::write(&table, "no table").unwrap();
    expect(read(), 2, &["--page raw"]);
    let mut missing = msdeform(&folder, "counters --workload ddetr_dec");
    expect(missing.env("PATH", "").env_remove("MSDEFORM_NCU"), 3, &["ncu"]);
}

#[test]
fn variants_are_listed_for_scripts_with_the_promised_fields() {
    let list = json("variants --json");
    let list = list.as_array().unwrap();
    for variant in list {
        for field in ["id", "direction", "device", "dtypes", "layouts", "origin", "idea"] {
            assert!(!variant[field].is_null(), "{field} is missing in {variant}");
        }
    }
    let available = |direction: &str| {
        list.iter().any(|v| v["direction"] == direction && v["available"] == true)
    };
    assert!(available("forward") && available("backward"));
    let forward = json("variants --json --direction forward");
    assert!(strings(&forward, "direction").iter().all(|direction| *direction == "forward"));
}

#[test]
fn workloads_are_listed_with_their_reason() {
    let list = json("workloads --json");
    for name in ["ddetr_enc", "ddetr_dec", "bevformer_sca", "seed", "seed_6x8", "edge_hostile"] {
        assert!(strings(&list, "name").contains(&name), "{name} is missing");
    }
    printed(msdeform(&folder(), "workloads"), &["one pixel, one row and one column"]);
}

#[test]
fn verify_compares_every_tensor_and_counts_what_it_skips() {
    let report = json("verify --workload edge_one_pixel,edge_no_queries --json");
    assert_eq!(report["passed"], true);
    let checked = report["checked"].as_array().unwrap();
    assert!(checked.iter().all(|check| check["pass"] == true));
    let backward = checked.iter().find(|check| check["direction"] == "backward").unwrap();
    let tensors = strings(&backward["tensors"], "tensor");
    assert_eq!(tensors, ["grad_value", "grad_locations", "grad_weights"]);
    for field in ["elements", "max_abs", "max_rel", "rel_l2", "bound"] {
        assert!(backward["tensors"][0][field].is_number(), "{field}");
    }
    // Every CPU lacks one of the instruction sets.
    assert!(report["skipped"][0]["reason"].as_str().unwrap().contains("CPU"));
}

#[test]
fn commands_run_the_fused_operator_and_name_its_rows() {
    let report = json(
        "verify --device cpu --from-offsets --json \
         --workload edge_one_point,edge_point_lists,edge_channels_33,edge_hostile",
    );
    let checked = report["checked"].as_array().unwrap();
    assert!(checked.iter().all(|check| check["pass"] == true), "{report}");
    let backward = checked.iter().find(|check| check["direction"] == "backward").unwrap();
    let gradients = ["grad_value", "grad_references", "grad_offsets", "grad_logits"];
    assert_eq!(strings(&backward["tensors"], "tensor"), gradients);
    let compared = |check: &Value| check["tensors"][1]["elements"].as_u64();
    assert!(checked.iter().any(|check| compared(check) > Some(0)), "references are compared");

    let record = json(&format!("bench --device cpu --from-offsets --json --training {QUICK}"));
    let measurements = record["measurements"].as_array().unwrap();
    assert_eq!(measurements.len(), 3, "one step of each dtype, not every variant");
    for measured in measurements {
        assert_eq!(measured["direction"], "training");
        assert_eq!(measured["workload"], "edge_one_point from offsets");
        assert!(measured["rel_l2"].as_f64() < Some(1e-2), "{measured}");
    }
    // What is timed is what models ask for, and just that is compared.
    let checked = record["verification"]["checked"].as_array().unwrap();
    let backward = checked.iter().find(|check| check["direction"] == "backward").unwrap();
    let gradients = ["grad_value", "grad_offsets", "grad_logits"];
    assert_eq!(strings(&backward["tensors"], "tensor"), gradients);
}

#[test]
fn verify_takes_a_fresh_seed_and_says_which() {
    let fresh = || json("verify --workload edge_one_point --seed random --json");
    assert_ne!(fresh()["seed"], fresh()["seed"]);
    let verify = "verify --workload edge_one_point --dtype f32 --seed 7 -v";
    printed(msdeform(&folder(), verify), &["seed 7", "pass"]);
}

#[test]
fn bench_gives_raw_samples_and_the_error() {
    let record = json(
        "bench --workload edge_channels_33 --dtype f16 --seconds 0.01 --threads 1 --batch 1 --queries 50 --json",
    );
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
    let commit = record["commit"].as_str().unwrap();
    let commit = &commit[..commit.len().min(9)];
    let version = printed(msdeform(&folder(), "--version"), &[commit]);
    assert_eq!(version.contains("-dirty"), record["dirty"].as_bool().unwrap(), "{version}");
}

#[test]
fn a_training_step_is_of_the_named_variants() {
    let named = "fwd_cpu_scalar,bwd_cpu_scalar";
    let bench = "bench --training --device cpu --dtype f32 --json";
    let record = json(&format!("{bench} --variant {named} {QUICK}"));
    assert_eq!(record["measurements"][0]["variant"], named.replace(',', "+"));
    assert!(record["measurements"][0]["rel_l2"].as_f64() <= Some(1e-5), "both were verified");
}

#[test]
fn the_main_job_prints_one_table_and_says_where_its_record_went() {
    let folder = folder();
    let output = expect(msdeform(&folder, &format!("{QUICK} --record")), 0, &[]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("edge_one_point") && text.contains("backward"), "{text}");
    assert!(text.contains(" 0 failed"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    let place = text.lines().find_map(|line| line.strip_prefix("Record: ")).unwrap();
    assert!(place.starts_with("msdeform-records"), "{place}");
    assert!(folder.path().join(place).join("record.json").is_file());
    assert!(folder.path().join(place).join("summary.md").is_file());

    let figures =
        |options: &str| printed_json(msdeform(&folder, &format!("records --json {options}")));
    let all = figures("");
    for field in PUBLISHED_FIELDS {
        assert!(!all[0][field].is_null(), "{field} is missing in {}", all[0]);
    }
    let records = "records --workload edge_one_point --dtype bf16";
    let table = printed(msdeform(&folder, records), &["bf16"]);
    assert!(!table.contains("f32 "), "{table}");

    // A manifest names what is shown unless all are wanted.
    let manifest = folder.path().join("msdeform-records/manifest.json");
    std::fs::write(manifest, r#"{"schema": 1, "releases": {}}"#).unwrap();
    assert_eq!((figures("").as_array().unwrap().len(), figures("--local")), (0, all));
    expect(msdeform(&folder, "records"), 0, &["--local adds them"]);
}

#[test]
fn the_main_job_writes_where_told_or_not_at_all() {
    let folder = folder();
    let job = format!("{QUICK} --json");
    let document = printed_json(msdeform(&folder, &job).arg("--record=evidence"));
    let place = document["record_folder"].as_str().unwrap();
    assert!(place.starts_with("evidence"), "{place}");
    assert!(folder.path().join(place).is_dir());

    let empty = tempfile::tempdir().unwrap();
    printed_json(msdeform(&empty, &job));
    assert_eq!(entries(empty.path()).len(), 0);
}

#[test]
fn merged_runs_name_each_run_and_refuse_edited_records() {
    let folder = folder();
    for variant in ["fwd_cpu_scalar", "bwd_cpu_scalar"] {
        let bench =
            format!("bench --device cpu --threads 1 --dtype f32 --variant {variant} {QUICK}");
        expect(msdeform(&folder, &bench).args(["--json", "--record=runs"]), 0, &[]);
    }
    let runs = entries(&entries(&folder.path().join("runs"))[0]);
    assert_eq!(runs.len(), 2);
    let merge = || {
        let mut command = msdeform(&folder, "records merge --json");
        command.args(&runs);
        command
    };
    expect(merge(), 2, &["--record"]);
    let written = printed_json(merge().arg("--record=merged"));
    let written = written[0].as_str().unwrap();
    let merged = read_json(&folder.path().join(written).join("record.json"));
    let commands = strings(&merged["runs"], "command");
    assert!(commands[0].contains("fwd_cpu_scalar") && commands[1].contains("bwd_cpu_scalar"));
    assert!(commands.iter().all(|command| command.ends_with("--record")), "{commands:?}");

    let text = std::fs::read_to_string(runs[0].join("record.json")).unwrap();
    std::fs::write(runs[0].join("record.json"), text.replace("\"dirty\"", "\"Dirty\"")).unwrap();
    expect(merge().arg("--record=merged"), 3, &["edited after a command wrote it"]);
}

#[test]
fn a_workload_of_ones_own_is_a_file() {
    let folder = folder();
    let text = "name = \"mine\"\nwhy = \"my shape\"\ntags = []\nbatch = 1\nheads = 2\nchannels = 8\n\
                levels = [[6, 5]]\npoints = 2\nqueries = 9\nreference_points = \"uniform\"\n\
                locations = [\"uniform\"]\nlayouts = [\"interleaved\"]\n";
    std::fs::write(folder.path().join("mine.toml"), text).unwrap();
    let bench = "bench --workload mine.toml --seconds 0 --no-probe --dtype f32 --threads 1";
    let words = ["mine: N=1 M=2 D=8 Lq=9 (6x5) P=2 f32 interleaved", ", 1 thread\n"];
    printed(msdeform(&folder, bench), &words);
}

/// What the ledger of the tree has open is tested next to the ledger, in msdeform-report.
#[test]
fn mistakes_have_their_exit_code_and_say_what_is_known() {
    let folder = folder();
    std::fs::write(folder.path().join("broken.toml"), "name = 3").unwrap();
    for (arguments, code, message) in [
        ("bench --workload ddetr_encs", 2, "did you mean `ddetr_enc`?"),
        ("bench --workload broken.toml", 2, "broken.toml"),
        ("bench --workload absent.toml", 2, "absent.toml"),
        ("bench --variant fwd_magic", 2, "fwd_cpu_scalar"),
        ("bench --dtype int8", 2, "f32, f16, bf16"),
        ("bench --dtype f64", 2, "no device computes f64"),
        ("bench --layout planar", 2, "head_major_padded"),
        ("bench --locations near", 2, "local, uniform"),
        ("bench --device tpu", 2, "cuda:0"),
        ("bench --seconds=-1", 2, "--seconds"),
        ("bench --mode exact", 2, "fast, deterministic"),
        ("bench --training --direction forward", 2, "--direction"),
        ("bench --workload edge_one_point --threads 0", 2, "at least one"),
        ("verify --from-offsets --ledger --device cpu", 2, "--ledger needs a GPU"),
        ("verify --device cpu --workload edge_one_point --part 2/2", 2, "--models"),
        ("verify --device cpu --workload edge_one_point --part 3/2", 2, "not a part"),
        ("tune --device cpu --seconds=-1", 2, "not a duration"),
        ("tune --device cpu --locations local,uniform", 2, "one kind"),
        ("tune --device cpu --variant no_such", 2, "no_such"),
        ("run call.safetensors --frobnicate", 2, "--frobnicate"),
        ("nonsense", 2, "nonsense"),
        ("warm", 3, "CUDA driver"),
        ("warm --arch sm_70", 2, "known: sm_80, sm_86"),
        ("warm --device cpu", 2, "--arch"),
        ("warm --arch sm_90 --device cuda:0", 2, "--arch"),
        ("warm --arch sm_90 --model resnet", 2, "RT-DETR"),
        ("warm --arch sm_90 --workload nothing", 2, "ddetr_enc"),
        ("warm --arch sm_90 --threads 0", 2, "--threads"),
        ("analyze", 2, "msdeform probe --record"),
        ("records --dir nowhere", 3, "nowhere"),
        ("ledger --gpu none", 3, "--gpu names another"),
        ("ledger renew --gpu none", 3, "--gpu names another"),
        ("ledger merge other.json --gpu none", 3, "--gpu names another"),
    ] {
        if arguments == "warm" && msdeform_cuda::device_count().is_ok() {
            continue;
        }
        let mut command = msdeform(&folder, arguments);
        let output = expect(command.env("MSDEFORM_CACHE_DIR", folder.path()), code, &[message]);
        assert_eq!(output.stdout, b"", "{arguments}");
    }
    assert_eq!(entries(folder.path()), [folder.path().join("broken.toml")]);
}

#[test]
fn records_that_cannot_be_read_or_written_name_their_path() {
    let folder = folder();
    std::fs::write(folder.path().join("file"), "").unwrap();
    expect(msdeform(&folder, QUICK).arg("--record=file"), 3, &["file"]);
    let run = folder.path().join("records/chip/2026-01-01-0");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("record.json"), "{").unwrap();
    expect(msdeform(&folder, "records --dir records"), 3, &["record.json"]);
}
