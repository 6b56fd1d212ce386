//! Outputs and inputs that are no ordinary files, or the same file.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::thread;

use libtest_mimic::Trial;

use crate::setting::{
    call, expect, folder, mkfifo, msdeform, read_output, temporaries, trial, write_safetensors,
};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("places::a_fifo_gets_results_and_stays_one", fifo_output),
        trial("places::a_fifo_gives_tensors_and_workloads", fifo_input),
        trial(
            "places::standard_output_gets_results_and_the_report_goes_elsewhere",
            standard_output,
        ),
        trial("places::a_folder_or_a_socket_is_refused_for_a_file", refused),
        trial("places::the_input_is_never_the_output", input_is_output),
    ]
}

const RUN: &str = "run call.safetensors -o";
const TUNE: &str =
    "tune --device cpu --workload edge_one_point --dtype f32 --seconds 0.1 --threads 1 -o";

fn fifo_output() {
    let folder = folder();
    let fifo = folder.path().join("fifo");
    mkfifo(&fifo);
    write_safetensors(&folder.path().join("call.safetensors"), &call(3));
    let read = |fifo: &Path| {
        let fifo = fifo.to_owned();
        thread::spawn(move || fs::read(fifo).unwrap())
    };
    let reader = read(&fifo);
    expect(msdeform(&folder, RUN).arg("fifo"), 0, &[]);
    assert_eq!(read_output(&reader.join().unwrap()), Some(vec![1, 3, 2]));
    let reader = read(&fifo);
    expect(msdeform(&folder, TUNE).arg("fifo"), 0, &[]);
    let tuned: serde_json::Value = serde_json::from_slice(&reader.join().unwrap()).unwrap();
    assert_eq!(tuned["entries"].as_array().unwrap().len(), 2, "one file, the last: {tuned}");
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    assert_eq!(temporaries(folder.path()).len(), 0);
}

fn fifo_input() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    mkfifo(&at("fifo"));
    write_safetensors(&at("call.safetensors"), &call(3));
    let feed = |from: &Path| {
        let (from, to) = (from.to_owned(), at("fifo"));
        thread::spawn(move || drop(fs::write(to, fs::read(from).unwrap())))
    };
    let feeder = feed(&at("call.safetensors"));
    expect(msdeform(&folder, "run fifo"), 2, &["is a stream", "--output"]);
    feeder.join().unwrap();
    let feeder = feed(&at("call.safetensors"));
    expect(msdeform(&folder, "run fifo -o out.safetensors"), 0, &[]);
    feeder.join().unwrap();
    assert_eq!(read_output(&fs::read(at("out.safetensors")).unwrap()), Some(vec![1, 3, 2]));
    let workload =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../msdeform-lab/workloads/edge_one_point.toml");
    let feeder = feed(Path::new(workload));
    expect(msdeform(&folder, "verify --device cpu --dtype f32 --workload ./fifo"), 0, &[]);
    feeder.join().unwrap();
}

fn standard_output() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &call(3));
    let words = ["wrote     output to /dev/stdout"];
    let output = expect(msdeform(&folder, RUN).arg("/dev/stdout"), 0, &words);
    assert_eq!(read_output(&output.stdout), Some(vec![1, 3, 2]));
}

fn refused() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &call(3));
    fs::create_dir(folder.path().join("folder")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    for (name, words) in [("folder", "is a folder"), ("socket", "is a socket")] {
        expect(msdeform(&folder, RUN).args([name, "--force"]), 2, &[name, words]);
        // Before the search, not after it.
        expect(msdeform(&folder, TUNE).arg(name), 2, &[name, words]);
        let before = fs::symlink_metadata(folder.path().join(name)).unwrap().file_type();
        assert!(before.is_dir() || before.is_socket());
    }
    drop(socket);
}

fn input_is_output() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write_safetensors(&at("call.safetensors"), &call(3));
    symlink("call.safetensors", at("link.safetensors")).unwrap();
    let before = fs::read(at("call.safetensors")).unwrap();
    for output in ["call.safetensors", "./call.safetensors", "link.safetensors"] {
        expect(msdeform(&folder, RUN).args([output, "--force"]), 2, &["is the input"]);
    }
    assert_eq!(fs::read(at("call.safetensors")).unwrap(), before);
}
