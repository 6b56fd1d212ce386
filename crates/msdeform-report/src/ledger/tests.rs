use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use msdeform::{ATTENTION, FROM_OFFSETS};
use msdeform_bench::fixtures::{TestDevice, some_specialisations};
use msdeform_bench::verify::{Report, Verification};
use msdeform_bench::verify_compiled::verify_compiled;
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda_lab::registry;
use msdeform_devices::STANDARD_SEED;
use msdeform_devices::soak::SoakReport;

use super::*;

fn on_h200() -> Run {
    Run {
        gpu: "NVIDIA H200".to_owned(),
        driver: "13.0".to_owned(),
        nvrtc: "13.0".to_owned(),
        commit: None,
        by: "verify".to_owned(),
    }
}

fn passed(fingerprint: String) -> WorkloadsEntry {
    WorkloadsEntry {
        fingerprint,
        cases: 12,
        worst_rel_l2: Some(2.5e-4),
        bound: 5e-4,
        passed: true,
        run: on_h200(),
    }
}

fn random(sources: String, problems: u64, failed: u64) -> RandomEntry {
    RandomEntry { sources, seed: 7, problems, failed, run: on_h200() }
}

/// A ledger with an entry for everything that must be verified. Thousands of hashes: they are computed once.
fn complete() -> Ledger {
    static COMPLETE: LazyLock<Ledger> = LazyLock::new(make_complete);
    COMPLETE.clone()
}

fn make_complete() -> Ledger {
    let mut ledger = Ledger::default();
    let mut hashes = Hashes::default();
    for operator in Operator::ALL {
        for &variant in REGISTRY.iter().filter(|variant| is_verified_for(**variant, operator)) {
            let sources = Sources::of(variant);
            for &dtype in variant.spec().dtypes {
                let subject = subject(variant, dtype, operator);
                let print = sources.fingerprint(variant, dtype, operator);
                ledger.workloads.insert(subject.clone(), passed(print));
                ledger.random.insert(subject, random(sources.hash(), 100, 0));
            }
        }
        for found in specialisations(operator) {
            let entry = KernelEntry { worst_rel_l2: Some(2.5e-4), passed: true, run: on_h200() };
            ledger.kernels.insert(hashes.key(&found), entry);
        }
    }
    ledger
}

fn records() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records")
}

#[test]
fn a_complete_ledger_leaves_nothing_open_and_survives_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h200/ledger.json");
    assert_eq!(Ledger::read(&path).unwrap(), Ledger::default());
    let ledger = complete();
    for operator in Operator::ALL {
        assert_eq!(ledger.unverified(operator), Vec::<String>::new());
    }
    ledger.write(&path).unwrap();
    assert_eq!(Ledger::read(&path).unwrap(), ledger);
    let edited = std::fs::read_to_string(&path).unwrap().replace("\"cases\":12", "\"cases\":13");
    std::fs::write(&path, edited).unwrap();
    let error = Ledger::read(&path).unwrap_err().to_string();
    assert!(error.contains("edited after a command wrote it"), "{error}");
}

#[test]
fn changed_failed_and_missing_entries_are_told_apart() {
    let (variant, mut ledger) = (REGISTRY[0], complete());
    let of = |dtype| subject(variant, dtype, &ATTENTION);
    ledger.workloads.insert(of(DType::F32), passed("something else".to_owned()));
    ledger.workloads.get_mut(&of(DType::F16)).unwrap().passed = false;
    ledger.workloads.remove(&of(DType::Bf16));
    let id = variant.spec().id;
    assert_eq!(
        ledger.unverified(&ATTENTION),
        [
            format!("{id} f32: changed since it was verified"),
            format!("{id} f16: failed"),
            format!("{id} bf16: never verified"),
        ]
    );
    assert_eq!(ledger.unverified(&FROM_OFFSETS), Vec::<String>::new());
}

#[test]
fn what_dispatch_may_choose_must_have_computed_random_problems() {
    let (variant, mut ledger) = (REGISTRY[0], complete());
    let sources = Sources::of(variant).hash();
    let of = |dtype| subject(variant, dtype, &ATTENTION);
    ledger.random.insert(of(DType::F32), random(sources.clone(), 0, 0));
    ledger.random.insert(of(DType::F16), random(sources, 100, 1));
    ledger.random.insert(of(DType::Bf16), random("other".to_owned(), 100, 0));
    let id = variant.spec().id;
    assert_eq!(
        ledger.unverified(&ATTENTION),
        [
            format!("{id} f32: no random problems"),
            format!("{id} f16: in a run of random problems that failed"),
            format!("{id} bf16: changed since it computed random problems"),
        ]
    );
}

#[test]
fn a_kernel_that_no_gpu_ran_is_open_although_its_variant_was_verified() {
    let mut ledger = complete();
    let reachable = specialisations(&ATTENTION);
    let of = |id: &str| reachable.iter().find(|s| s.variant.spec().id == id).unwrap();
    let mut hashes = Hashes::default();
    ledger.kernels.remove(&hashes.key(of("bwd_level_sort")));
    ledger.kernels.get_mut(&hashes.key(of("fwd_tile_gather"))).unwrap().passed = false;
    let open = ledger.unverified(&ATTENTION);
    assert_eq!(open.len(), 2, "{open:?}");
    assert!(
        open[0].contains("bwd_level_sort: 1 kernels never verified as they are now"),
        "{open:?}"
    );
    assert!(open[1].contains("fwd_tile_gather: 1 kernels failed"), "{open:?}");
}

#[test]
fn a_run_writes_what_it_covers_and_forgets_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.json");
    let reachable = some_specialisations();
    let ids: Vec<&str> = reachable.iter().map(|found| found.variant.spec().id).collect();
    let checks =
        verify_compiled(&TestDevice, reachable.clone(), &ids, STANDARD_SEED, |_| (), |_| ());
    complete().write(&path).unwrap();
    assert_eq!(update_specialisations(&path, &TestDevice, &reachable, &checks).unwrap(), 3);
    let ledger = Ledger::read(&path).unwrap();
    let failed = checks[1].specialisation.variant.spec().id;
    let open = ledger.unverified(&ATTENTION).join("\n");
    assert!(open.contains(&format!("{failed}: 1 kernels failed")), "{open}");
    assert_eq!(ledger.unverified(&FROM_OFFSETS), Vec::<String>::new());
}

#[test]
fn the_operators_have_entries_of_their_own() {
    let variant = registry::find("fwd_general").unwrap();
    let problem = msdeform::Problem::builder().queries(1).channels(8).levels([(4, 4)]).points(1);
    let problem = problem.build().unwrap();
    let case = msdeform_bench::fixtures::case("edge_one_point", problem.layout());
    let case = msdeform_devices::WorkloadCase { operator: &FROM_OFFSETS, ..case };
    let check = Verification {
        label: case.label(variant.spec(), &problem),
        tensors: Vec::new(),
        pass: true,
        error: None,
    };
    let report = Report { checked: vec![check], skipped: Vec::new() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.json");
    assert_eq!(update(&path, &TestDevice, &report).unwrap(), 1);
    let counts = |count: u64| {
        [("fwd_general".to_owned(), [("f16".to_owned(), count)].into_iter().collect())]
    };
    let report = SoakReport {
        seed: 11,
        variants: counts(9).into_iter().collect(),
        variants_fused: counts(4).into_iter().collect(),
        ..SoakReport::default()
    };
    assert_eq!(update_random(&path, &TestDevice, &FROM_OFFSETS, &report).unwrap(), 3);
    let ledger = Ledger::read(&path).unwrap();
    let of = |dtype, operator| subject(variant, dtype, operator);
    assert!(ledger.workloads(&of(DType::F32, &ATTENTION)).is_none());
    let noted = ledger.workloads(&of(DType::F32, &FROM_OFFSETS)).unwrap();
    let print = Sources::of(variant).fingerprint(variant, DType::F32, &FROM_OFFSETS);
    assert_eq!((&noted.fingerprint, &*noted.run.by), (&print, "verify"));
    assert!(noted.run.commit.is_some());
    let random = &ledger.random[&of(DType::F16, &FROM_OFFSETS)];
    assert_eq!((random.seed, random.problems, &*random.run.by), (11, 4, "soak"));
    assert!(!ledger.random.contains_key(&of(DType::F16, &ATTENTION)));
}

#[test]
fn a_short_run_does_not_replace_a_longer_one_and_a_failure_does() {
    let variant = REGISTRY[0];
    let (sources, of) = (Sources::of(variant).hash(), subject(variant, DType::F32, &ATTENTION));
    let mut ledger = complete();
    let with = |entry: RandomEntry| {
        let random = [(of.clone(), entry)].into_iter().collect();
        Ledger { random, ..Ledger::default() }
    };
    ledger.merge(with(random(sources.clone(), 0, 0)));
    assert_eq!(ledger.random[&of].problems, 100);
    ledger.merge(with(random(sources.clone(), 200, 0)));
    assert_eq!(ledger.random[&of].problems, 200);
    ledger.merge(with(random(sources, 3, 1)));
    assert_eq!(ledger.random[&of].failed, 1);
}

/// A repository with two commits of today's kernels, the first of them written differently.
fn repository(change: impl Fn(&str) -> String) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(root).args(["-c", "user.name=x", "-c", "user.email=x@x"]);
        assert!(command.args(arguments).output().unwrap().status.success(), "{arguments:?}");
    };
    let write = |change: &dyn Fn(&str) -> String| {
        let crates = [
            ("msdeform-cuda", msdeform_cuda::sources::HEADERS.to_vec()),
            ("msdeform-cuda", msdeform_cuda::REGISTRY.iter().map(|v| v.source()).collect()),
        ];
        for (name, files) in crates {
            for file in files {
                let path = root.join("crates").join(name).join("kernels").join(file.name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                let is_changed = file.name == "fwd_general.cu";
                let text = if is_changed { change(file.text) } else { file.text.to_owned() };
                std::fs::write(path, text).unwrap();
            }
        }
    };
    git(&["init", "-q"]);
    write(&change);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "then"]);
    write(&str::to_owned);
    git(&["add", "."]);
    git(&["commit", "-q", "--allow-empty", "-m", "now"]);
    folder
}

/// A ledger that has verified `fwd_general` of the first commit, and everything else as it is.
fn verified_then(history: &History) -> Ledger {
    let mut ledger = complete();
    let variant = registry::find("fwd_general").unwrap();
    let first = history.commits().unwrap().pop().unwrap();
    let (old, new) = (history.sources(&first, variant).unwrap().unwrap(), Sources::of(variant));
    for operator in Operator::ALL {
        for &dtype in variant.spec().dtypes {
            let subject = subject(variant, dtype, operator);
            let print = old.fingerprint(variant, dtype, operator);
            ledger.workloads.get_mut(&subject).unwrap().fingerprint = print;
            ledger.random.get_mut(&subject).unwrap().sources = old.hash();
        }
        let own = specialisations(operator);
        for found in own.iter().filter(|found| found.variant.spec().id == "fwd_general") {
            let key = |sources: &Sources| {
                let hash = sources.unit_hash(&found.unit);
                (operator.name.to_owned(), "fwd_general".to_owned(), hash)
            };
            let entry = ledger.kernels.remove(&key(&new)).unwrap();
            ledger.kernels.insert(key(&old), entry);
        }
    }
    ledger
}

#[test]
fn a_kernel_that_was_only_written_differently_is_renewed() {
    let Some(nvrtc) = Nvrtc::for_tests() else { return };
    // Another name of a local variable: other text, the same machine code.
    let repository = repository(|text| text.replace("owns_row", "stores_row"));
    let history = History::of(repository.path());
    let mut ledger = verified_then(&history);
    assert!(!ledger.unverified(&ATTENTION).is_empty());
    let renewals = renew(&mut ledger, &history, &nvrtc, &|_, _| ()).unwrap();
    assert_eq!(renewals.len(), 2, "{renewals:?}");
    for renewal in &renewals {
        assert_eq!((renewal.variant, renewal.different, renewal.open), ("fwd_general", 0, 0));
        assert!(renewal.renewed > 6, "{renewal:?}");
    }
    for operator in Operator::ALL {
        assert_eq!(ledger.unverified(operator), Vec::<String>::new());
    }
    let variant = registry::find("fwd_general").unwrap();
    let by = &ledger.workloads(&subject(variant, DType::F32, &ATTENTION)).unwrap().run.by;
    assert!(by.starts_with("same machine code as ") && by.contains(", NVRTC "), "{by}");
}

#[test]
fn a_kernel_that_computes_something_else_is_not_renewed() {
    let Some(nvrtc) = Nvrtc::for_tests() else { return };
    let repository =
        repository(|text| text.replace("bottom * at.right_share", "bottom * at.bottom_share"));
    let history = History::of(repository.path());
    let mut ledger = verified_then(&history);
    let before = ledger.unverified(&ATTENTION);
    let renewals = renew(&mut ledger, &history, &nvrtc, &|_, _| ()).unwrap();
    assert!(renewals.iter().all(|renewal| renewal.different > 0 && renewal.open > 0));
    assert_eq!(ledger.unverified(&ATTENTION), before);
}

/// The gate itself. A GPU whose folder is in `records/` must have verified everything there is.
#[test]
fn every_kernel_in_the_tree_was_verified_on_a_gpu() {
    let ledger = Ledger::read(&records().join("h200/ledger.json")).unwrap();
    let mut open = ledger.unverified(&ATTENTION);
    if msdeform_cuda::OFFSETS_ARE_VERIFIED {
        open.extend(ledger.unverified(&FROM_OFFSETS));
    }
    assert!(
        open.is_empty(),
        "run `cargo xtask ledger renew`, or `msdeform verify --device cuda:0 --ledger` and `msdeform soak --device cuda:0 \
         --ledger` on a GPU; open:\n{}",
        open.join("\n")
    );
}
