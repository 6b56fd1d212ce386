//! Disks that are full or cannot be written, sizes past all memory, numbers past all sense.

use std::fs;
use std::panic::catch_unwind;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::setting::{
    HUGE, call, declared, expect, folder, is_root, msdeform, msdeform_after, temporaries, trial,
    trial_if, write_npy, write_safetensors, write_sparse,
};

pub fn trials() -> Vec<Trial> {
    let disk = folder();
    let has_disk = mount_small_disk(&disk);
    unmount(&disk);
    vec![
        trial("limits::a_disk_quota_leaves_what_was_there", file_size_limit),
        trial_if(has_disk, "limits::a_full_disk_leaves_what_was_there", full_disk),
        trial("limits::a_place_that_cannot_be_written_is_named", read_only),
        trial("limits::sizes_past_all_memory_are_refused_with_both_numbers", declared_sizes),
        trial("limits::sparse_and_endless_files_end_at_their_limit", endless_files),
        trial("limits::a_small_address_space_is_an_error_and_no_abort", little_memory),
        trial("limits::threads_have_a_bound", threads),
    ]
}

/// Results that are there, a run that cannot write new ones, and everything as it was.
fn nothing_is_lost(folder: &TempDir, limits: &str, why: &str) {
    write_npy(folder.path(), &call(20_000));
    let old = ["output.npy", "grad_value.npy", "report.html"].map(|name| folder.path().join(name));
    old.iter().for_each(|path| fs::write(path, "old").unwrap());
    let records = concat!(env!("CARGO_MANIFEST_DIR"), "/../../records");
    let report = format!("report --output report.html --dir {records}");
    for (command, name) in [("run . --backward --force", "output.npy"), (&report, "report.html")] {
        expect(msdeform_after(limits, folder, command), 3, &[name, why]);
    }
    for path in &old {
        assert_eq!(fs::read(path).unwrap(), b"old", "{}", path.display());
    }
    assert_eq!(temporaries(folder.path()).len(), 0);
}

/// Ignored, the signal of a limit becomes the error that a full disk gives.
fn file_size_limit() {
    nothing_is_lost(&folder(), "trap '' XFSZ; ulimit -f 8", "cannot write: File too large");
}

/// Mounts a disk with room for the inputs and not for the results; whether that is possible.
fn mount_small_disk(at: &TempDir) -> bool {
    let options = "-t tmpfs -o size=700k tmpfs".split(' ');
    let mounted = Command::new("mount").args(options).arg(at.path()).output();
    mounted.is_ok_and(|output| output.status.success())
}

fn unmount(disk: &TempDir) {
    drop(Command::new("umount").arg(disk.path()).output());
}

fn full_disk() {
    let folder = folder();
    assert!(mount_small_disk(&folder));
    let lost = catch_unwind(|| nothing_is_lost(&folder, "true", "cannot write: No space left"));
    unmount(&folder);
    lost.unwrap();
}

fn read_only() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &call(3));
    // Not even root makes files in /proc.
    for (place, why) in [("/proc/x.safetensors", ""), ("/dev/full", ": No space left")] {
        let run = msdeform(&folder, &format!("run call.safetensors -o {place}"));
        expect(run, 3, &[&format!("{place}: cannot write{why}")]);
    }
    let bench = "bench --device cpu --workload edge_one_point --seconds 0 --no-probe --dtype f32 \
                 --record=/proc/records";
    expect(msdeform(&folder, bench), 3, &["/proc/records"]);
    if !is_root() {
        use std::os::unix::fs::PermissionsExt;
        let closed = folder.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
        let run = msdeform(&folder, "run call.safetensors -o closed/out.safetensors");
        expect(run, 3, &["closed/out.safetensors: cannot write"]);
    }
}

fn declared_sizes() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write_safetensors(&at("call.safetensors"), &declared(1 << 40));
    assert!(fs::metadata(at("call.safetensors")).unwrap().len() < 1000);
    let words = ["TiB of memory", "are free"];
    let npy = at("npy");
    fs::create_dir(&npy).unwrap();
    write_npy(&npy, &declared(1 << 40));
    for call in [
        "call.safetensors",
        "call.safetensors --check",
        "call.safetensors --variant reference",
        "npy",
    ] {
        expect(msdeform(&folder, &format!("run {call}")), 3, &words);
    }
    fs::write(at("huge.toml"), HUGE).unwrap();
    let verify = "verify --full --device cpu --dtype f32 --workload huge.toml";
    expect(msdeform(&folder, verify), 3, &["huge", "of memory"]);
    // One image of a level that no machine holds, which thinning out queries does not make smaller.
    let levels = HUGE.replace("[[2, 2]]", "[[4000000, 4000000]]").replace("1099511627776", "1");
    fs::write(at("levels.toml"), levels).unwrap();
    let verify = "verify --device cpu --workload levels.toml --dtype f32";
    expect(msdeform(&folder, verify), 3, &["huge", "TiB of memory"]);
}

fn endless_files() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    // What reads more than it should does not get the memory for it.
    let limited = |command: &str| msdeform_after("ulimit -v 4000000", &folder, command);
    write_sparse(&at("sparse.toml"), 1 << 40);
    for workload in ["/dev/zero", "sparse.toml"] {
        let verify = limited(&format!("verify --device cpu --workload {workload}"));
        expect(verify, 2, &["is larger than 1048576 bytes"]);
    }
    write_safetensors(&at("call.safetensors"), &call(3));
    let words = ["note: the tuning file /dev/zero is ignored", "larger than"];
    for (command, words) in [("variants", &[][..]), ("run call.safetensors --device cpu", &words)] {
        expect(limited(command).env("MSDEFORM_TUNING", "/dev/zero"), 0, words);
    }
    write_npy(folder.path(), &call(3));
    write_sparse(&at("value.npy"), 1 << 40);
    let run = at("records/chip/2026-01-01-0");
    fs::create_dir_all(&run).unwrap();
    write_sparse(&run.join("record.json"), 1 << 40);
    for (command, name) in [
        ("run .", "value.npy"),
        ("run /dev/zero -o x", "/dev/zero"),
        ("records --dir records", "record.json"),
        ("counters --csv /dev/zero", "/dev/zero"),
    ] {
        expect(limited(command), 3, &[name, "larger than"]);
    }
}

fn little_memory() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &declared(30_000_000));
    let run = "run call.safetensors --device cpu --threads 1 -o /dev/null";
    for kib in [300_000, 500_000, 700_000, 900_000] {
        let limited = msdeform_after(&format!("ulimit -v {kib}"), &folder, run);
        expect(limited, 3, &["of memory", "are free"]);
    }
    expect(msdeform(&folder, run), 0, &[]);
}

fn threads() {
    let folder = folder();
    write_safetensors(&folder.path().join("call.safetensors"), &call(3));
    let run = "run call.safetensors --force";
    let small = "--workload edge_one_point --dtype f32";
    for command in [run, &format!("verify {small}"), &format!("bench --seconds 0 {small}")] {
        for count in ["0", "100000", "18446744073709551615"] {
            let start = Instant::now();
            let refused = msdeform(&folder, &format!("{command} --device cpu --threads {count}"));
            expect(refused, 2, &["at least one is needed, and at most"]);
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }
    expect(msdeform(&folder, &format!("{run} --device cpu --threads 64")), 0, &[]);
}
