use std::process::Command;

use msdeform::{ATTENTION, DType, FROM_OFFSETS};
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda_lab::REGISTRY;
use msdeform_cuda_lab::registry;
use msdeform_lab::STANDARD_SEED;
use msdeform_lab::fixtures::{TestDevice, some_specialisations};
use msdeform_lab::soak::SoakReport;
use msdeform_lab::verify::{Report, Verification};
use msdeform_lab::verify_compiled::verify_compiled;

use super::hashes::Sources;
use super::renew::History;
use super::*;

/// An entry that passed.
fn entry(claim: &Claim, hash: &str) -> Entry {
    Entry { count: 100, worst_rel_l2: Some(2.5e-4), ..claim.entry(hash) }
}

/// A ledger with an entry for everything that must be verified.
fn complete() -> Ledger {
    let mut ledger = Ledger::default();
    for claim in Operator::ALL.into_iter().flat_map(Claim::all) {
        assert!(ledger.note(entry(claim, claim.hash())));
    }
    ledger
}

/// The claims of a variant that computes the plain operator.
fn claims(variant: &str) -> impl Iterator<Item = &'static Claim> {
    Claim::all(&ATTENTION).filter(move |claim| claim.id() == variant)
}

/// The entry of a claim of today.
fn of_today<'a>(ledger: &'a mut Ledger, claim: &Claim) -> &'a mut Entry {
    ledger.0.get_mut(&claim.key(claim.hash())).unwrap()
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
    let edited = std::fs::read_to_string(&path).unwrap().replace("\"count\":100", "\"count\":101");
    std::fs::write(&path, edited).unwrap();
    let error = Ledger::read(&path).unwrap_err().to_string();
    assert!(error.contains("edited after a command wrote it"), "{error}");
}

#[test]
fn changed_failed_and_missing_entries_are_told_apart() {
    let (id, mut ledger) = (REGISTRY[0].spec.id, complete());
    let of_variant: Vec<&Claim> = claims(id).filter(|claim| claim.kernel.is_none()).collect();
    let [f32, f32_random, f16, f16_random, bf16, bf16_random] = of_variant[..] else {
        panic!("three dtypes, each on workloads and on random problems");
    };
    of_today(&mut ledger, f32).hash = "something else".into();
    of_today(&mut ledger, f16).failed = 1;
    ledger.0.remove(&bf16.key(bf16.hash()));
    of_today(&mut ledger, f32_random).count = 0;
    of_today(&mut ledger, f16_random).failed = 1;
    of_today(&mut ledger, bf16_random).hash = "other".into();
    // A kernel that no GPU ran is open although its variant was verified.
    let [missing, broken] = ["bwd_level_sort", "fwd_tile_gather"]
        .map(|id| claims(id).find(|claim| claim.kernel.is_some()).unwrap());
    ledger.0.remove(&missing.key(missing.hash()));
    of_today(&mut ledger, broken).failed = 1;
    let open = ledger.unverified(&ATTENTION);
    assert_eq!(
        open[..6],
        [
            format!("{id} f32: changed since it was verified"),
            format!("{id} f32: no random problems"),
            format!("{id} f16: failed"),
            format!("{id} f16: in a run of random problems that failed"),
            format!("{id} bf16: never verified"),
            format!("{id} bf16: changed since it computed random problems"),
        ]
    );
    let [missing, failed] = &open[6..] else { panic!("{open:?}") };
    assert!(missing.starts_with("bwd_level_sort: 1 kernels never verified as they are now"));
    assert!(failed.starts_with("fwd_tile_gather: 1 kernels failed"), "{failed}");
    assert_eq!(ledger.unverified(&FROM_OFFSETS), Vec::<String>::new());
}

#[test]
fn kernels_that_dispatch_cannot_choose_are_forgotten_and_nothing_else() {
    let mut ledger = complete();
    let kernel = claims("fwd_tile_gather").find(|claim| claim.kernel.is_some()).unwrap();
    ledger.note(entry(kernel, "0"));
    assert_ne!(ledger, complete());
    ledger.forget_unreachable();
    assert_eq!(ledger, complete());
}

#[test]
fn a_run_writes_what_it_covers_and_forgets_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.json");
    let reachable = some_specialisations();
    let ids: Vec<&str> = reachable.iter().map(|found| found.variant.spec.id).collect();
    let checks =
        verify_compiled(&TestDevice, reachable.clone(), &ids, STANDARD_SEED, |_| (), |_| ());
    complete().write(&path).unwrap();
    assert_eq!(update_specialisations(&path, &TestDevice, &reachable, &checks).unwrap(), 3);
    let ledger = Ledger::read(&path).unwrap();
    let failed = checks[1].specialisation.variant.spec.id;
    let open = ledger.unverified(&ATTENTION).join("\n");
    assert!(open.contains(&format!("{failed}: 1 kernels failed")), "{open}");
    assert_eq!(ledger.unverified(&FROM_OFFSETS), Vec::<String>::new());
}

#[test]
fn the_operators_have_entries_of_their_own() {
    let variant = registry::find("fwd_general").unwrap();
    let problem = msdeform::Problem::builder().queries(1).channels(8).levels([(4, 4)]).points(1);
    let problem = problem.build().unwrap();
    let case = msdeform_lab::fixtures::case("edge_one_point", problem.layout());
    let case = msdeform_lab::WorkloadCase { operator: &FROM_OFFSETS, ..case };
    let check = Verification {
        label: case.label(&[variant.spec], &problem),
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
    let Ledger(mut entries) = Ledger::read(&path).unwrap();
    let (_, noted) = entries.pop_first().unwrap();
    let print = Sources::of(variant).fingerprint(variant, DType::F32, &FROM_OFFSETS);
    assert_eq!((noted.hash, &*noted.operator), (print, FROM_OFFSETS.name));
    assert_eq!((&*noted.run.by, noted.run.commit.is_some()), ("verify", true));
    let random: Vec<Entry> = entries.into_values().collect();
    let facts = |entry: &Entry| (entry.dtype.clone(), entry.count, entry.failed, entry.seed);
    let of_dtypes = [("bf16", 0), ("f16", 4), ("f32", 0)];
    let expected = of_dtypes.map(|(dtype, count)| (dtype.to_owned(), count, 0, Some(11)));
    assert_eq!(random.iter().map(facts).collect::<Vec<_>>(), expected);
    for Entry { operator, hash, run, .. } in random {
        assert_eq!((&*operator, &*run.by), (FROM_OFFSETS.name, "soak"));
        assert_eq!(hash, Sources::of(variant).hash());
    }
}

#[test]
fn a_short_run_does_not_replace_a_longer_one_and_a_failure_does() {
    let mut ledger = complete();
    let claim = claims(REGISTRY[0].spec.id).find(|claim| claim.what == What::Random).unwrap();
    let random = |[count, failed]: [u64; 2]| Entry { count, failed, ..entry(claim, claim.hash()) };
    for (run, kept) in [([0, 0], [100, 0]), ([200, 0], [200, 0]), ([3, 1], [3, 1])] {
        let other = random(run);
        ledger.merge(Ledger([(other.key(), other)].into()));
        assert_eq!(ledger.0[&claim.key(claim.hash())], random(kept));
    }
}

/// A repository with two commits of today's kernels, the first of them written differently.
fn repository([from, to]: [&str; 2]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(root).args(["-c", "user.name=x", "-c", "user.email=x@x"]);
        assert!(command.args(arguments).output().unwrap().status.success(), "{arguments:?}");
    };
    git(&["init", "-q"]);
    let kernels = msdeform_cuda::REGISTRY.iter().map(|variant| variant.source);
    let files: Vec<_> = msdeform_cuda::sources::HEADERS.iter().copied().chain(kernels).collect();
    for is_changed in [true, false] {
        for file in &files {
            let path = root.join("crates/msdeform-cuda/kernels").join(file.name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = match file.name {
                "fwd_general.cu" if is_changed => file.text.replace(from, to),
                _ => file.text.to_owned(),
            };
            std::fs::write(path, text).unwrap();
        }
        git(&["add", "."]);
        git(&["commit", "-q", "-m", "a text"]);
    }
    folder
}

/// A ledger that has verified `fwd_general` of the first commit, and everything else as it is.
fn verified_then(history: &History) -> Ledger {
    let variant = registry::find("fwd_general").unwrap();
    let first = history.commits().unwrap().pop().unwrap();
    let old = history.sources(first, variant).unwrap().unwrap();
    let mut ledger = complete();
    ledger.0.retain(|key, _| key.2 != "fwd_general");
    for claim in Operator::ALL.into_iter().flat_map(Claim::all) {
        if claim.id() == "fwd_general" {
            ledger.note(entry(claim, &claim.hash_of(&old)));
        }
    }
    ledger
}

#[test]
fn only_kernels_with_the_same_machine_code_are_renewed() {
    let Some(nvrtc) = Nvrtc::for_tests() else { return };
    // Another name of a local variable, and another number.
    for (change, is_same) in [
        (["owns_row", "stores_row"], true),
        (["bottom * at.right_share", "bottom * at.bottom_share"], false),
    ] {
        let repository = repository(change);
        let mut ledger = verified_then(&History::of(repository.path()));
        let before = ledger.unverified(&ATTENTION);
        assert!(!before.is_empty());
        let renewals = renew(&mut ledger, repository.path(), &nvrtc, &|_, _| ()).unwrap();
        assert_eq!(renewals.len(), 2, "{renewals:?}");
        for renewal in &renewals {
            assert_eq!(renewal.variant, "fwd_general");
            assert_eq!((renewal.different == 0, renewal.open == 0), (is_same, is_same));
            assert!(renewal.renewed > 6 || !is_same, "{renewal:?}");
        }
        if !is_same {
            assert_eq!(ledger.unverified(&ATTENTION), before);
            continue;
        }
        for operator in Operator::ALL {
            assert_eq!(ledger.unverified(operator), Vec::<String>::new());
        }
        let claim = claims("fwd_general").next().unwrap();
        let by = &ledger.0[&claim.key(claim.hash())].run.by;
        assert!(by.starts_with("same machine code as ") && by.contains(", NVRTC "), "{by}");
    }
}

/// The gate itself. A GPU whose folder is in `records/` must have verified everything there is.
#[test]
fn every_kernel_in_the_tree_was_verified_on_a_gpu() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/h200/ledger.json");
    let ledger = Ledger::read(&path).unwrap();
    let written = ledger.text().unwrap();
    let is_as_read = std::fs::read_to_string(&path).unwrap().ends_with(&written[1..]);
    assert!(is_as_read, "writing what was read changes nothing");
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
