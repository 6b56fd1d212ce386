//! Commands that write, killed at random moments: files with final names are whole, and the next run removes
//! the temporaries of the killed one.
//!
//! `MSDEFORM_KILLS` says how often each command is killed (20 unless said), `MSDEFORM_KILL_SEED` repeats the moments of
//! an earlier run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use libtest_mimic::Trial;
use msdeform_lab::Random;

use crate::setting::{call, files, folder, msdeform, read_json, temporaries, trial, write_npy};

pub fn trials() -> Vec<Trial> {
    vec![trial("kills::run", run), trial("kills::bench", bench), trial("kills::tune", tune)]
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Kills `command` again and again. After each kill `check` looks at the final names; after the next run that is let
/// through nothing unfinished is left. Every tenth kill is followed by such a run.
fn kill_and_check(name: &str, at: &Path, command: impl Fn() -> Command, check: impl Fn()) {
    let kills = number("MSDEFORM_KILLS").unwrap_or(20);
    let seed = number("MSDEFORM_KILL_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64
    });
    println!("{name}: MSDEFORM_KILL_SEED={seed}");
    let mut random = Random::new(seed);
    let let_through = || {
        let start = Instant::now();
        let output = command().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{name}: {said}");
        check();
        assert_eq!(temporaries(at), Vec::<PathBuf>::new(), "{name}, seed {seed}");
        start.elapsed()
    };
    // The second is faster than the first; the moments should cover a whole run, not the time after one.
    let (first, second) = (let_through(), let_through());
    let whole = first.min(second);
    let (mut killed, mut left_temporaries) = (0, 0);
    for round in 1..=kills {
        let mut child = command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Every other time in the last quarter, where most of the writing is.
        let begin = if round % 2 == 0 { 0.75 } else { 0.0 };
        std::thread::sleep(whole.mul_f64(random.between(begin, 1.0)));
        killed += u64::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        left_temporaries += usize::from(!temporaries(at).is_empty());
        check();
        if round % 10 == 0 || round == kills {
            let_through();
        }
    }
    println!(
        "{name}: {killed} of {kills} killed, {left_temporaries} times a temporary was left, none after the \
         next run (seed {seed}, a run takes {} ms)",
        whole.as_millis()
    );
    assert!(killed > 0, "{name}: nothing was killed");
}

/// Results are bitwise reproducible: each file is the old one or the new one.
fn run() {
    let folder = folder();
    let at = folder.path();
    let names = ["output", "grad_value", "grad_sampling_locations", "grad_attention_weights"];
    let file = |name: &str| at.join(name).with_extension("npy");
    // Megabytes, so that there are moments in which they are being written.
    write_npy(at, &call(150_000));
    let command = || msdeform(at, "run . --backward --force --device cpu --threads 1");
    assert!(command().output().unwrap().status.success());
    let new = names.map(|name| fs::read(file(name)).unwrap());
    for name in names {
        fs::write(file(name), "old").unwrap();
    }
    let inputs = 6;
    kill_and_check("run", at, command, || {
        let mut others = files(at).len() - temporaries(at).len();
        for (name, new) in names.iter().zip(&new) {
            let found = fs::read(file(name)).unwrap();
            assert!(found == b"old" || found == *new, "{name} is {} bytes", found.len());
            // The next round can show again which ones were replaced.
            fs::write(file(name), "old").unwrap();
            others -= 1;
        }
        assert_eq!(others, inputs, "{:?}", files(at));
    });
}

/// Every file below that ends like this, and bears a final name with all of its folders.
fn finished(at: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = files(at);
    found.retain(|path| path.ends_with(name));
    found.retain(|path| path.iter().all(|part| !part.to_string_lossy().starts_with('.')));
    found.iter().map(|path| at.join(path)).collect()
}

/// A record that bears its name has both of its files, and both are whole.
fn bench() {
    let folder = folder();
    let at = folder.path();
    let bench = "bench --device cpu --workload edge_one_point,edge_outside --seconds 0 --samples 5 \
                 --no-probe --threads 1 --dtype f32 --record=records";
    kill_and_check(
        "bench",
        at,
        || msdeform(at, bench),
        || {
            let records = finished(at, "record.json");
            for record in &records {
                assert_eq!(read_json(record)["schema"], 1);
                let summary = fs::read_to_string(record.with_file_name("summary.md")).unwrap();
                assert!(summary.ends_with('\n') && summary.lines().count() > 3, "{summary}");
            }
            assert_eq!(finished(at, "summary.md").len(), records.len());
            // A thousand of one day is the most, and each is read again in every round.
            if records.len() > 30 {
                fs::remove_dir_all(at.join("records")).unwrap();
            }
        },
    );
}

/// A tuning file is absent, or whole; so is the record of the search.
fn tune() {
    let folder = folder();
    let at = folder.path();
    let tune = "tune --device cpu --workload edge_one_point,edge_outside --seconds 0.2 --dtype f32 \
                --threads 1 -o tuning.json --record=records";
    kill_and_check(
        "tune",
        at,
        || msdeform(at, tune),
        || {
            for file in finished(at, "tuning.json") {
                let tuned = read_json(&file);
                assert_eq!(tuned["schema"], 1, "{}", file.display());
            }
        },
    );
}
