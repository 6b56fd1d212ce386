//! Outputs and inputs that are no ordinary files, or the same file.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use libtest_mimic::Trial;

use crate::setting::{
    call, expect, files, folder, mkfifo, msdeform, read_output, temporaries, trial, trial_if,
    write_npy, write_safetensors,
};

pub fn trials() -> Vec<Trial> {
    let device = folder();
    let can_make_devices = make_null(&device.path().join("null"));
    vec![
        trial_if(can_make_devices, "places::a_device_is_written_to_and_not_replaced", devices),
        trial("places::a_fifo_gets_results_and_stays_one", fifo_output),
        trial("places::a_fifo_gives_tensors_and_workloads", fifo_input),
        trial(
            "places::standard_output_gets_results_and_the_report_goes_elsewhere",
            standard_output,
        ),
        trial("places::a_folder_or_a_socket_is_refused_for_a_file", refused),
        trial("places::a_link_is_followed_and_stays", links),
        trial("places::the_input_is_never_the_output", input_is_output),
        trial("places::what_stands_in_the_way_of_one_result_saves_all", one_in_the_way),
    ]
}

/// A null device of our own, so that the machine's is safe.
fn make_null(path: &Path) -> bool {
    let made = Command::new("mknod").arg(path).args(["c", "1", "3"]).output();
    made.is_ok_and(|output| output.status.success()) && fs::write(path, b"x").is_ok()
}

fn tune(at: &Path) -> Command {
    let mut command = msdeform(at);
    command.args(["tune", "--device", "cpu", "--workload", "edge_one_point", "--dtype", "f32"]);
    command.args(["--seconds", "0.1", "--threads", "1"]);
    command
}

fn devices() {
    let folder = folder();
    let null = folder.path().join("null");
    assert!(make_null(&null));
    let input = folder.path().join("call.safetensors");
    write_safetensors(&input, &call(3));
    let is_device = || fs::symlink_metadata(&null).unwrap().file_type().is_char_device();
    // There is nothing to replace, so --force is not needed.
    for force in [&[][..], &["--force"]] {
        let mut run = msdeform(folder.path());
        expect(run.args(["run", "call.safetensors", "-o", "null"]).args(force), 0, &[]);
        assert!(is_device());
    }
    expect(tune(folder.path()).args(["-o", "null"]), 0, &[]);
    assert!(is_device());
    assert_eq!(files(folder.path()).len(), 2, "{:?}", files(folder.path()));
}

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
    expect(msdeform(folder.path()).args(["run", "call.safetensors", "-o", "fifo"]), 0, &[]);
    assert_eq!(read_output(&reader.join().unwrap()), Some(vec![1, 3, 2]));
    let reader = read(&fifo);
    expect(tune(folder.path()).args(["-o", "fifo"]), 0, &[]);
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
    let words = ["is a stream", "--output"];
    expect(msdeform(folder.path()).args(["run", "fifo"]), 2, &words);
    feeder.join().unwrap();
    let feeder = feed(&at("call.safetensors"));
    expect(msdeform(folder.path()).args(["run", "fifo", "-o", "out.safetensors"]), 0, &[]);
    feeder.join().unwrap();
    assert_eq!(read_output(&fs::read(at("out.safetensors")).unwrap()), Some(vec![1, 3, 2]));
    let workload =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../msdeform-devices/workloads/edge_one_point.toml");
    let feeder = feed(Path::new(workload));
    let verify = ["verify", "--device", "cpu", "--dtype", "f32", "--workload", "./fifo"];
    expect(msdeform(folder.path()).args(verify), 0, &[]);
    feeder.join().unwrap();
}

fn standard_output() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &call(3));
    let mut run = msdeform(folder.path());
    let words = ["wrote     output to /dev/stdout"];
    let output = expect(run.args(["run", "call.safetensors", "-o", "/dev/stdout"]), 0, &words);
    assert_eq!(read_output(&output.stdout), Some(vec![1, 3, 2]));
}

fn refused() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &call(3));
    fs::create_dir(folder.path().join("folder")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    for (name, words) in [("folder", "is a folder"), ("socket", "is a socket")] {
        let run = ["run", "call.safetensors", "--force", "-o", name];
        expect(msdeform(folder.path()).args(run), 2, &[name, words]);
        // Before the search, not after it.
        expect(tune(folder.path()).args(["-o", name]), 2, &[name, words]);
        let before = fs::symlink_metadata(folder.path().join(name)).unwrap().file_type();
        assert!(before.is_dir() || before.is_socket());
    }
    drop(socket);
}

fn links() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write_safetensors(&at("call.safetensors"), &call(3));
    fs::create_dir(at("elsewhere")).unwrap();
    symlink("elsewhere/out.safetensors", at("link.safetensors")).unwrap();
    let run = ["run", "call.safetensors", "-o", "link.safetensors"];
    expect(msdeform(folder.path()).args(run), 0, &[]);
    assert_eq!(
        read_output(&fs::read(at("elsewhere/out.safetensors")).unwrap()),
        Some(vec![1, 3, 2])
    );
    expect(msdeform(folder.path()).args(run), 2, &["link.safetensors: exists", "--force"]);
    expect(msdeform(folder.path()).args(run).arg("--force"), 0, &[]);
    assert!(fs::symlink_metadata(at("link.safetensors")).unwrap().file_type().is_symlink());
    assert_eq!(temporaries(folder.path()).len(), 0);
}

fn input_is_output() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write_safetensors(&at("call.safetensors"), &call(3));
    symlink("call.safetensors", at("link.safetensors")).unwrap();
    let before = fs::read(at("call.safetensors")).unwrap();
    for output in ["call.safetensors", "./call.safetensors", "link.safetensors"] {
        let run = ["run", "call.safetensors", "--force", "-o", output];
        expect(msdeform(folder.path()).args(run), 2, &["is the input"]);
    }
    assert_eq!(fs::read(at("call.safetensors")).unwrap(), before);
}

fn one_in_the_way() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write_npy(folder.path(), &call(3));
    for name in ["output", "grad_value", "grad_attention_weights"] {
        fs::write(at(name).with_extension("npy"), "old").unwrap();
    }
    fs::create_dir(at("grad_sampling_locations.npy")).unwrap();
    let words = ["grad_sampling_locations.npy: is a folder"];
    expect(msdeform(folder.path()).args(["run", ".", "--backward", "--force"]), 2, &words);
    for name in ["output", "grad_value", "grad_attention_weights"] {
        assert_eq!(fs::read(at(name).with_extension("npy")).unwrap(), b"old", "{name}");
    }
    assert_eq!(temporaries(folder.path()).len(), 0);
}
