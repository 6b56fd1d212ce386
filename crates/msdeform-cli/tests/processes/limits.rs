//! Disks that are full or cannot be written, sizes past all memory, numbers past all sense.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use crate::setting::{
    call, declared, expect, folder, is_root, msdeform, msdeform_after, temporaries, trial,
    trial_if, write_npy, write_safetensors, write_sparse,
};

pub fn trials() -> Vec<Trial> {
    let has_disk = mount_small_disk(folder().path()).is_some();
    vec![
        trial("limits::a_full_device_is_said", full_device),
        trial("limits::a_disk_quota_leaves_what_was_there", file_size_limit),
        trial_if(has_disk, "limits::a_full_disk_leaves_what_was_there", full_disk),
        trial("limits::a_folder_that_cannot_be_written_is_named", read_only),
        trial("limits::sizes_past_all_memory_are_refused_with_both_numbers", declared_sizes),
        trial("limits::sparse_and_endless_files_end_at_their_limit", endless_files),
        trial("limits::a_small_address_space_is_an_error_and_no_abort", little_memory),
        trial("limits::threads_have_a_bound", threads),
    ]
}

fn full_device() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &call(3));
    let run = ["run", "call.safetensors", "-o", "/dev/full"];
    expect(msdeform(folder.path()).args(run), 3, &["/dev/full: cannot write: No space left"]);
    let tune = ["tune", "--device", "cpu", "--workload", "edge_one_point", "--dtype", "f32"];
    let mut command = msdeform(folder.path());
    command.args(tune).args(["--seconds", "0.1", "-o", "/dev/full"]);
    expect(&mut command, 3, &["/dev/full: cannot write: No space left"]);
}

/// Results that are there, a run that cannot write new ones, and everything as it was.
fn nothing_is_lost(folder: &Path, mut command: impl FnMut() -> Command, words: &str) {
    write_npy(folder, &call(20_000));
    for name in ["output.npy", "grad_value.npy", "report.html"] {
        fs::write(folder.join(name), "old").unwrap();
    }
    expect(command().args(["run", ".", "--backward", "--force"]), 3, &["output.npy", words]);
    let record = concat!(env!("CARGO_MANIFEST_DIR"), "/../../records");
    let report = ["report", "--output", "report.html", "--dir", record];
    expect(command().args(report), 3, &["report.html", words]);
    for name in ["output.npy", "grad_value.npy", "report.html"] {
        assert_eq!(fs::read(folder.join(name)).unwrap(), b"old", "{name}");
    }
    assert_eq!(temporaries(folder).len(), 0);
}

/// Ignored, the signal of a limit becomes the error that a full disk gives.
fn file_size_limit() {
    let folder = folder();
    let limits = "trap '' XFSZ; ulimit -f 8";
    nothing_is_lost(
        folder.path(),
        || msdeform_after(limits, folder.path()),
        "cannot write: File too large",
    );
}

struct SmallDisk<'a>(&'a Path);

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(self.0).output());
    }
}

/// Room for the inputs below and not for the results.
fn mount_small_disk(at: &Path) -> Option<SmallDisk<'_>> {
    let mount = ["-t", "tmpfs", "-o", "size=700k", "tmpfs"];
    let mounted = Command::new("mount").args(mount).arg(at).output().ok()?;
    mounted.status.success().then_some(SmallDisk(at))
}

fn full_disk() {
    let folder = folder();
    let disk = mount_small_disk(folder.path()).unwrap();
    nothing_is_lost(disk.0, || msdeform(disk.0), "cannot write: No space left");
}

fn read_only() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &call(3));
    // Not even root makes files there.
    let run = ["run", "call.safetensors", "-o", "/proc/msdeform.safetensors"];
    expect(msdeform(folder.path()).args(run), 3, &["/proc/msdeform.safetensors: cannot write"]);
    let bench = ["bench", "--device", "cpu", "--workload", "edge_one_point", "--seconds", "0"];
    let mut command = msdeform(folder.path());
    command.args(bench).args(["--no-probe", "--dtype", "f32", "--record=/proc/records"]);
    expect(&mut command, 3, &["/proc/records"]);
    if !is_root() {
        use std::os::unix::fs::PermissionsExt;
        let closed = folder.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
        let run = ["run", "call.safetensors", "-o", "closed/out.safetensors"];
        expect(msdeform(folder.path()).args(run), 3, &["closed/out.safetensors: cannot write"]);
    }
}

fn declared_sizes() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write_safetensors(&at("call.safetensors"), &declared(1 << 40));
    assert!(fs::metadata(at("call.safetensors")).unwrap().len() < 1000);
    let words = ["TiB of memory", "are free"];
    for options in [&[][..], &["--check"], &["--variant", "reference"]] {
        let mut run = msdeform(folder.path());
        expect(run.args(["run", "call.safetensors"]).args(options), 3, &words);
    }
    let npy = at("npy");
    fs::create_dir(&npy).unwrap();
    write_npy(&npy, &declared(1 << 40));
    expect(msdeform(folder.path()).args(["run", "npy"]), 3, &words);
    let workload = "name = \"huge\"\nwhy = \"declares terabytes\"\nbatch = 1\nheads = 1\n\
                    channels = 2\nlevels = [[2, 2]]\npoints = 0\nqueries = 1099511627776\n\
                    reference_points = \"uniform\"\nlocations = [\"uniform\"]\n\
                    layouts = [\"interleaved\"]\ntags = []\n";
    fs::write(at("huge.toml"), workload).unwrap();
    for command in ["verify --full", "bench", "tune"] {
        let mut msdeform = msdeform(folder.path());
        msdeform.args(command.split(' ')).args(["--device", "cpu", "--workload", "huge.toml"]);
        expect(msdeform.args(["--dtype", "f32"]), 3, &["huge", "of memory"]);
    }
    // One image of a level that no machine holds, which thinning out queries does not make smaller.
    let levels = workload.replace("[[2, 2]]", "[[4000000, 4000000]]").replace("1099511627776", "1");
    fs::write(at("levels.toml"), levels).unwrap();
    let verify = ["verify", "--device", "cpu", "--workload", "levels.toml", "--dtype", "f32"];
    expect(msdeform(folder.path()).args(verify), 3, &["huge", "TiB of memory"]);
}

fn endless_files() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    // What reads more than it should does not get the memory for it.
    let limited = || msdeform_after("ulimit -v 4000000", folder.path());
    write_sparse(&at("sparse.toml"), 1 << 40);
    let words = ["is larger than 1048576 bytes"];
    for workload in ["/dev/zero", "sparse.toml"] {
        let verify = ["verify", "--device", "cpu", "--workload", workload];
        expect(limited().args(verify), 2, &words);
    }
    let tuning = ["variants"];
    expect(limited().args(tuning).env("MSDEFORM_TUNING", "/dev/zero"), 0, &[]);
    write_safetensors(&at("call.safetensors"), &call(3));
    let run = ["run", "call.safetensors", "--device", "cpu"];
    let words = ["note: the tuning file /dev/zero is ignored", "larger than"];
    expect(limited().args(run).env("MSDEFORM_TUNING", "/dev/zero"), 0, &words);
    write_npy(folder.path(), &call(3));
    write_sparse(&at("value.npy"), 1 << 40);
    expect(limited().args(["run", "."]), 3, &["value.npy", "larger than"]);
    expect(limited().args(["run", "/dev/zero", "-o", "x"]), 3, &["/dev/zero", "larger than"]);
    let run = at("records/chip/2026-01-01-0");
    fs::create_dir_all(&run).unwrap();
    write_sparse(&run.join("record.json"), 1 << 40);
    expect(limited().args(["records", "--dir", "records"]), 3, &["record.json", "larger than"]);
    expect(limited().args(["counters", "--csv", "/dev/zero"]), 3, &["/dev/zero", "larger than"]);
}

fn little_memory() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &declared(30_000_000));
    let run = ["run", "call.safetensors", "--device", "cpu", "--threads", "1", "-o", "/dev/null"];
    for kib in [300_000, 500_000, 700_000, 900_000] {
        let mut command = msdeform_after(&format!("ulimit -v {kib}"), folder.path());
        expect(command.args(run), 3, &["of memory", "are free"]);
    }
    expect(msdeform(folder.path()).args(run), 0, &[]);
}

fn threads() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &call(3));
    let small = ["--workload", "edge_one_point", "--dtype", "f32"];
    let commands: [&[&str]; 3] =
        [&["run", "call.safetensors", "--force"], &["verify"], &["bench", "--seconds", "0"]];
    for command in commands {
        let more = if command[0] == "run" { &[][..] } else { &small };
        for count in ["0", "100000", "18446744073709551615"] {
            let start = Instant::now();
            let mut msdeform = msdeform(folder.path());
            msdeform.args(command).args(more).args(["--device", "cpu", "--threads", count]);
            expect(&mut msdeform, 2, &["at least one is needed, and at most"]);
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }
    let run = ["run", "call.safetensors", "--force", "--device", "cpu", "--threads", "64"];
    expect(msdeform(folder.path()).args(run), 0, &[]);
}
