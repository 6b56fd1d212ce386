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

fn entry(claim: &Claim, hash: &str) -> Entry {
    let (_, operator, variant, dtype) = claim.key(hash);
    let (hash, worst_rel_l2, passed) = (hash.to_owned(), Some(2.5e-4), true);
    let evidence = match claim.what {
        What::Workloads(_) => {
            Evidence::Workloads { dtype, hash, cases: 12, worst_rel_l2, bound: 5e-4, passed }
        }
        What::Random(_) => Evidence::Random { dtype, hash, seed: 7, problems: 100, failed: 0 },
        What::Kernel(_) => Evidence::Kernel { hash, worst_rel_l2, passed },
    };
    let [gpu, driver, nvrtc, by] = ["NVIDIA H200", "13.0", "13.0", "verify"].map(str::to_owned);
    Entry { operator, variant, evidence, run: Run { gpu, driver, nvrtc, commit: None, by } }
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

/// Changes the entry of a claim of today.
fn change(ledger: &mut Ledger, claim: &Claim, change: impl FnOnce(&mut Evidence)) {
    change(&mut ledger.0.get_mut(&claim.key(claim.hash())).unwrap().evidence);
}

fn fail(found: &mut Evidence) {
    match found {
        Evidence::Workloads { passed, .. } | Evidence::Kernel { passed, .. } => *passed = false,
        Evidence::Random { failed, .. } => *failed = 1,
    }
}

/// Sets the numbers of random problems and of failures.
fn set_counts(found: &mut Evidence, wanted: [u64; 2]) {
    match found {
        Evidence::Random { problems, failed, .. } => [*problems, *failed] = wanted,
        other => panic!("{other:?}"),
    }
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
    let (id, mut ledger) = (REGISTRY[0].spec.id, complete());
    let open = |claim: &&Claim| !matches!(claim.what, What::Kernel(_));
    let [f32, f32_random, f16, f16_random, bf16, bf16_random] =
        claims(id).filter(open).collect::<Vec<_>>()[..]
    else {
        panic!("three dtypes, each on workloads and on random problems");
    };
    change(&mut ledger, f32, |found| "something else".clone_into(found.hash_mut()));
    change(&mut ledger, f16, fail);
    ledger.0.remove(&bf16.key(bf16.hash()));
    change(&mut ledger, f32_random, |found| set_counts(found, [0, 0]));
    change(&mut ledger, f16_random, |found| set_counts(found, [100, 1]));
    change(&mut ledger, bf16_random, |found| "other".clone_into(found.hash_mut()));
    assert_eq!(
        ledger.unverified(&ATTENTION),
        [
            format!("{id} f32: changed since it was verified"),
            format!("{id} f32: no random problems"),
            format!("{id} f16: failed"),
            format!("{id} f16: in a run of random problems that failed"),
            format!("{id} bf16: never verified"),
            format!("{id} bf16: changed since it computed random problems"),
        ]
    );
    assert_eq!(ledger.unverified(&FROM_OFFSETS), Vec::<String>::new());
}

#[test]
fn a_kernel_that_no_gpu_ran_is_open_although_its_variant_was_verified() {
    let mut ledger = complete();
    let kernel = |id| claims(id).find(|claim| matches!(claim.what, What::Kernel(_))).unwrap();
    let missing = kernel("bwd_level_sort");
    ledger.0.remove(&missing.key(missing.hash()));
    change(&mut ledger, kernel("fwd_tile_gather"), fail);
    let open = ledger.unverified(&ATTENTION);
    assert_eq!(open.len(), 2, "{open:?}");
    assert!(
        open[0].contains("bwd_level_sort: 1 kernels never verified as they are now"),
        "{open:?}"
    );
    assert!(open[1].contains("fwd_tile_gather: 1 kernels failed"), "{open:?}");
}

#[test]
fn kernels_that_dispatch_cannot_choose_are_forgotten_and_nothing_else() {
    let mut ledger = complete();
    let (key, entry) = ledger.0.iter().find(|(key, _)| key.0 == Section::Kernels).unwrap();
    let unreachable = ((key.0, key.1.clone(), key.2.clone(), "0".into()), entry.clone());
    ledger.0.extend([unreachable]);
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
    assert_eq!((noted.evidence.hash(), &*noted.operator), (&print, FROM_OFFSETS.name));
    assert_eq!((&*noted.run.by, noted.run.commit.is_some()), ("verify", true));
    let fused_f16 = |(_, entry): &(Key, Entry)| {
        let hash = Sources::of(variant).hash();
        let of = Evidence::Random { dtype: "f16".into(), hash, seed: 11, problems: 4, failed: 0 };
        (entry.evidence == of) && entry.operator == FROM_OFFSETS.name && entry.run.by == "soak"
    };
    let random: Vec<_> = entries.into_iter().collect();
    assert_eq!((random.len(), random.iter().filter(|entry| fused_f16(entry)).count()), (3, 1));
}

#[test]
fn a_short_run_does_not_replace_a_longer_one_and_a_failure_does() {
    let mut ledger = complete();
    let is_random = |claim: &&Claim| matches!(claim.what, What::Random(_));
    let claim = claims(REGISTRY[0].spec.id).find(is_random).unwrap();
    let random = |wanted: [u64; 2]| {
        let mut entry = entry(claim, claim.hash());
        set_counts(&mut entry.evidence, wanted);
        entry
    };
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
