use super::*;

#[test]
fn every_file_in_the_folder_is_built_in_and_parses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
    let mut on_disk: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| format!("workloads/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    let mut embedded: Vec<String> =
        builtin::FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
    on_disk.sort();
    embedded.sort();
    assert_eq!(on_disk, embedded);
    for (path, text) in builtin::FILES {
        let workload = Workload::parse(text, Path::new(path)).unwrap();
        assert_eq!(*path, format!("workloads/{}.toml", workload.name));
        assert!(workload.why.len() > 20, "{path} gives no reason");
        assert!(workload.has(Tag::Standard) != workload.has(Tag::Edge), "{path}");
    }
    assert_eq!(all().len(), builtin::FILES.len());
}

#[test]
fn published_shapes_are_as_published() {
    let problem = |name: &str| {
        let workload = find(name).unwrap();
        workload.problem(DType::F16, workload.layouts[0], Sizes::default()).unwrap()
    };
    for (name, batch, queries, samples) in [
        ("ddetr_enc", 2, 22_223, 16),
        ("ddetr_dec", 2, 300, 16),
        ("dino_dec", 2, 900, 16),
        ("rtdetr_dec", 8, 300, 12),
        ("m2f_enc", 2, 21_504, 12),
        ("bevformer_sca", 6, 9_675, 32),
        ("bevformer_tsa", 2, 40_000, 4),
        ("seed", 48, 15_422, 32),
        ("seed_6x8", 6, 15_422, 32),
    ] {
        let problem = problem(name);
        assert_eq!((problem.batch(), problem.queries()), (batch, queries), "{name}");
        assert_eq!(problem.samples(), samples, "{name}");
        assert_eq!(problem.channels(), 32, "{name}");
    }
    assert_eq!(problem("seed").spatial(), 19_560);
    assert_eq!(problem("seed").weights_len(), problem("seed_6x8").weights_len());
    assert_eq!(by_tag(Tag::Standard).count(), 9);
}

#[test]
fn a_wrong_name_lists_what_is_known_and_what_was_meant() {
    let message = Workload::named("ddetr_encs").unwrap_err().to_string();
    assert!(message.contains("did you mean `ddetr_enc`?"), "{message}");
    assert!(message.contains("bevformer_tsa") && message.contains("edge_hostile"), "{message}");
    let message = Workload::named("something").unwrap_err().to_string();
    assert!(!message.contains("did you mean"), "{message}");
    let message = Workload::named("no/such/file.toml").unwrap_err().to_string();
    assert!(message.contains("no/such/file.toml"), "{message}");
}

#[test]
fn a_bad_file_is_refused_with_its_place() {
    let good = builtin::FILES[0].1;
    let cases = [
        (good.replace("heads = 8", "haeds = 8"), "haeds"),
        (good.replace("\"interleaved\"", "\"planar\""), "planar"),
        (good.replace("points = 4", "points = [4, 4]"), "`points` has 2 entries"),
        (good.replace("[13, 21]", "[0, 21]"), "level 3 is 0 x 21"),
        (good.replace("queries = \"pixels\"", "queries = 300"), "as many queries as pixels"),
        (good.replace("[\"local\", \"uniform\"]", "[]"), "at least one"),
        (good.replace("\"uniform\"", "\"everywhere\""), "everywhere"),
    ];
    for (text, expected) in cases {
        assert_ne!(text, good);
        let message = Workload::parse(&text, Path::new("x.toml")).unwrap_err().to_string();
        assert!(message.contains(expected), "expected `{expected}` in: {message}");
    }
}

#[test]
fn callers_may_change_batch_queries_and_layout() {
    let workload = find("seed").unwrap();
    let sizes = Sizes { batch: Some(3), queries: Some(20_522) };
    let problem = workload.problem(DType::F32, ValueLayout::HeadMajorPadded, sizes).unwrap();
    assert_eq!((problem.batch(), problem.queries(), problem.spatial()), (3, 20_522, 20_522));
}

#[test]
fn levels_past_counting_are_refused_and_do_not_wrap_around() {
    let text = include_str!("../../../../fuzz/seeds/workload/levels_past_counting.toml");
    let error = Workload::parse(text, Path::new("levels.toml")).unwrap_err();
    assert!(matches!(error, WorkloadError::Problem { .. }), "{error}");
}
