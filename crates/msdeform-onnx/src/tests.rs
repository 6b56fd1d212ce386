//! Small graphs made by hand: what is recognised, what is left alone, what stays as it was.

use crate::model::Model;
use crate::proto::{
    Attribute, Dimension, Node, OpsetId, Tensor, ValueInfo, data_type, model_of, put,
};
use crate::{Form, Left, Options, Rewrite, Runtime, Target, inspect, probes, rewrite, trials};

const MSDEFORM: &str = "msdeform";
const MMDEPLOY: &str = "mmdeploy";
const LEVELS: [i64; 4] = [3, 4, 2, 1];
const HEADS: i64 = 2;
const CHANNELS: i64 = 3;

fn info(name: &str, dims: &[&str]) -> ValueInfo {
    let dim = |&text: &&str| match text.parse::<i64>() {
        Ok(size) => size.into(),
        Err(_) => Dimension { value: None, param: Some(text.to_owned()) },
    };
    ValueInfo::tensor(name, data_type::FLOAT, Some(dims.iter().map(dim).collect()))
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|&name| name.to_owned()).collect()
}

fn node(domain: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> Node {
    Node::new(domain, op, format!("node of {}", outputs[0]), names(inputs), names(outputs))
}

fn ints(name: &str, dims: &[i64], values: &[i64]) -> Node {
    Node::constant(name, Tensor::of_ints(dims, values, true))
}

fn floats(name: &str, dims: &[i64], values: &[f64]) -> Node {
    Node::constant(name, Tensor::of_floats(dims, values, data_type::FLOAT))
}

fn opsets() -> Vec<OpsetId> {
    let id = |domain: &str, version| OpsetId { domain: domain.into(), version };
    vec![id("", 17), id(MSDEFORM, 1), id(MMDEPLOY, 1)]
}

fn model(nodes: &[Node], inputs: &[ValueInfo]) -> Vec<u8> {
    model_of(&opsets(), nodes, inputs, &[info("output", &["n", "lq", "6"])])
}

/// One node between inputs whose batch and queries are open.
fn one_node(attributes: Vec<Attribute>, samples: &[&str]) -> Vec<u8> {
    sized_node(["n", "lq"], LEVELS, attributes, samples)
}

fn sized_node(
    [images, queries]: [&str; 2],
    levels: [i64; 4],
    attributes: Vec<Attribute>,
    samples: &[&str],
) -> Vec<u8> {
    let [first, second] = [levels[0] * levels[1], levels[2] * levels[3]];
    let op = node(
        MSDEFORM,
        "MSDeformAttn",
        &["value", "shapes", "starts", "locations", "weights"],
        &["output"],
    );
    let op = attributes.into_iter().fold(op, Node::with);
    let nodes = [ints("shapes", &[2, 2], &levels), ints("starts", &[2], &[0, first]), op];
    let locations: Vec<&str> = [&[images, queries, "2"], samples, &["2"]].concat();
    let weights: Vec<&str> = [&[images, queries, "2"], samples].concat();
    let inputs = [
        info("value", &[images, &(first + second).to_string(), "2", "3"]),
        info("locations", &locations),
        info("weights", &weights),
    ];
    model(&nodes, &inputs)
}

fn done(bytes: &[u8], to: Form) -> Rewrite {
    rewrite(bytes, to, Options::default()).unwrap()
}

fn one_reason(left: &[Left]) -> &str {
    assert_eq!(left.len(), 1, "{left:?}");
    &left[0].reason
}

#[test]
fn every_form_becomes_every_other_and_stays_the_same_attention() {
    for samples in [&["2", "4"][..], &["8"]] {
        let start = one_node(vec![], samples);
        for from in Form::ALL {
            let first = done(&start, from).model.unwrap_or_else(|| start.clone());
            for to in Form::ALL {
                let result = done(&first, to);
                assert_eq!(result.left, [], "{from} -> {to}");
                if from == to {
                    assert_eq!((result.kept.len(), result.model), (1, None));
                    continue;
                }
                let site = &result.rewritten[0];
                let is_standard = |form| matches!(form, Form::GridSample | Form::Gather);
                let runs = is_standard(from) || is_standard(to);
                assert_eq!(site.max_error.is_some(), runs, "{from} -> {to}: {site:?}");
                assert!(site.max_error.is_none_or(|error| error < 1e-9));
                let report = inspect(&result.model.unwrap(), Options::default()).unwrap();
                let site = &report.sites[0];
                assert_eq!((site.form, &site.points), (to, &Some(vec![4, 4])));
                assert_eq!(site.levels, Some(vec![[3, 4], [2, 1]]));
                assert_eq!((site.heads, site.channels), (Some(2), Some(3)));
                assert_eq!((site.batch.as_str(), site.queries.as_str()), ("n", "lq"));
            }
        }
    }
}

#[test]
fn gathers_are_one_for_all_corners_and_no_tensor_has_five_axes() {
    for samples in [&["2", "4"][..], &["8"]] {
        let bytes = done(&one_node(vec![], samples), Form::Gather).model.unwrap();
        let nodes = Model::read(&bytes).unwrap().nodes;
        let count = |op: &str| nodes.iter().filter(|node| node.is(op)).count();
        assert_eq!((count("Gather"), count("GridSample")), (4, 0), "pixels, x and y, two sizes");
        for form in [Form::Gather, Form::GridSample] {
            let target = Target::from(form).with_most_axes(4);
            let other = if form == Form::Gather { Form::GridSample } else { Form::Gather };
            let from = done(&bytes, other).model.unwrap_or_else(|| bytes.clone());
            let result = rewrite(&from, target, Options::default()).unwrap();
            assert_eq!(result.more_axes, [""; 0], "{form}");
        }
    }
}

#[test]
fn gathers_of_encoders_run_with_few_queries_for_several_images_too() {
    for images in ["1", "2", "n"] {
        let start = sized_node([images, "40"], [6, 6, 2, 2], vec![], &["8"]);
        let model = Model::read(&done(&start, Form::Gather).model.unwrap()).unwrap();
        let context = crate::evaluate::Context::new(&model, Options::default());
        let sites = crate::search(&context).sites;
        let sizes = &sites[0].evidence.as_ref().unwrap().sizes;
        assert_eq!(sizes.size(&40usize.into()), Some(7), "queries of the run, {images} images");
    }
}

#[test]
fn runtimes_get_a_form_and_a_reason_and_other_sites_the_second_form() {
    let uneven = one_node(vec![Attribute::ints("points", &[5, 3])], &["8"]);
    let even = one_node(vec![], &["2", "4"]);
    let form = |bytes: &[u8], runtime: Runtime| {
        let result = rewrite(bytes, runtime, Options::default()).unwrap();
        assert!(result.reason.is_some_and(|reason| reason.len() > 40) && result.left.is_empty());
        result.rewritten.first().map(|site| site.to)
    };
    assert_eq!(form(&even, Runtime::TensorRt), Some(Form::TensorRt));
    assert_eq!(form(&uneven, Runtime::TensorRt), Some(Form::Gather));
    assert_eq!(form(&uneven, Runtime::OrtWeb), Some(Form::Gather));
    assert_eq!(form(&uneven, Runtime::OpenVino), Some(Form::GridSample));
    assert_eq!(form(&even, Runtime::Ort), None, "it is in this form");
    for runtime in Runtime::ALL {
        assert_eq!(runtime.name().parse(), Ok(runtime));
    }
}

#[test]
fn heads_apart_are_the_same_attention() {
    for points in [[4, 4], [5, 3]] {
        let start = one_node(vec![Attribute::ints("points", &points)], &["8"]);
        let result = rewrite(&start, Runtime::Ncnn, Options::default()).unwrap();
        assert!(result.rewritten[0].max_error.is_some_and(|error| error < 1e-9), "{result:?}");
        assert_eq!(result.more_axes, [""; 0]);
        let nodes = Model::read(&result.model.unwrap()).unwrap().nodes;
        let samplers = nodes.iter().filter(|node| node.is("GridSample")).count();
        assert_eq!(samplers, 4, "two heads and two levels");
    }
}

#[test]
fn trials_are_models_of_every_site_in_every_form_and_dtype() {
    let forms = [Form::GridSample, Form::Gather];
    let (found, left) =
        trials(&one_node(vec![], &["8"]), &forms.map(Target::from), Options::default()).unwrap();
    assert_eq!(left, []);
    let kinds: Vec<_> = found.iter().map(|trial| (trial.dtype, trial.form)).collect();
    let expected = ["f32", "f16"].map(|dtype| forms.map(|form| (dtype, form)));
    assert_eq!(kinds, expected.concat());
    for trial in &found {
        assert_eq!(trial.shapes[1], [1, 300, 2, 8, 2]);
        let report = inspect(&trial.model, Options::default()).unwrap();
        assert_eq!((report.sites.len(), report.sites[0].form), (1, trial.form));
    }
}

#[test]
fn coordinates_of_other_dtypes_become_f32_before_anything_else() {
    for (kind, grid) in [(data_type::FLOAT16, 1), (data_type::BFLOAT16, 1), (data_type::DOUBLE, 0)]
    {
        let bytes = one_node(vec![], &["2", "4"]);
        let mut model = Model::read(&bytes).unwrap();
        for info in &mut model.inputs {
            info.r#type.as_mut().unwrap().tensor.as_mut().unwrap().elem_type = kind;
        }
        let nodes: Vec<Node> = model.nodes.clone();
        let outputs = [info("output", &["n", "lq", "6"])];
        let bytes = model_of(&opsets(), &nodes, &model.inputs, &outputs);
        let casts = |form: Form, from: &str, to: i64| {
            let nodes = Model::read(&done(&bytes, form).model.unwrap()).unwrap().nodes;
            let is_it = |node: &&Node| {
                node.is("Cast") && node.input[0] == from && node.int("to") == Some(to)
            };
            nodes.iter().filter(is_it).count()
        };
        assert_eq!(casts(Form::Gather, "locations", 1), 1, "{kind}");
        assert_eq!(casts(Form::GridSample, "locations", 1), grid, "{kind}");
        assert_eq!(casts(Form::GridSample, "value", 1), grid, "{kind}");
        let standard = done(&bytes, Form::GridSample).model.unwrap();
        assert_eq!(done(&standard, Form::GridSample).model, None, "it stays");
    }
}

#[test]
fn models_older_than_an_operator_are_left_alone() {
    let with = |version| {
        let model = Model::read(&one_node(vec![], &["2", "4"])).unwrap();
        let opsets = [
            OpsetId { domain: String::new(), version },
            OpsetId { domain: MSDEFORM.into(), version: 1 },
        ];
        model_of(&opsets, &model.nodes, &model.inputs, &[info("output", &["n", "lq", "6"])])
    };
    assert_eq!(done(&with(13), Form::Gather).left, []);
    assert!(one_reason(&done(&with(12), Form::Gather).left).contains("opset 12"));
    assert!(one_reason(&done(&with(13), Form::GridSample).left).contains("opset 13"));
}

#[test]
fn levels_with_points_of_their_own_have_no_form_in_tensorrt() {
    let start = one_node(vec![Attribute::ints("points", &[5, 3])], &["8"]);
    for to in [Form::TensorRt, Form::Mmdeploy] {
        let result = done(&start, to);
        assert!(one_reason(&result.left).contains("[5, 3] points"), "{:?}", result.left);
        assert_eq!(result.model, None);
    }
    let standard = done(&start, Form::GridSample).model.unwrap();
    let report = inspect(&standard, Options::default()).unwrap();
    assert_eq!(report.sites[0].points, Some(vec![5, 3]));
    let back = done(&standard, Form::MsDeform).model.unwrap();
    assert_eq!(inspect(&back, Options::default()).unwrap().sites[0].points, Some(vec![5, 3]));
}

#[test]
fn costs_are_those_of_the_flop_counter_and_of_the_laboratory() {
    let report = inspect(&one_node(vec![], &["2", "4"]), Options::default()).unwrap();
    let site = &report.sites[0];
    let sample_channels = 2 * 8 * 3;
    assert_eq!(site.flops_per_query, Some(8 * sample_channels));
    assert_eq!(site.gathered_bytes_per_query, Some(4 * 4 * sample_channels));
    assert_eq!((site.flops, site.gathered_bytes), (None, None), "batch and queries are open");
}

#[test]
fn level_sizes_from_outside_become_standard_operators_but_not_heads_apart() {
    let op = node(
        MMDEPLOY,
        "MMCVMultiScaleDeformableAttention",
        &["value", "shapes", "starts", "locations", "weights"],
        &["output"],
    );
    let with_queries = |of_locations: &str, of_weights: &str| {
        let mut inputs = vec![
            info("value", &["1", "s", "2", "3"]),
            info("locations", &["1", of_locations, "2", "2", "4", "2"]),
            info("weights", &["1", of_weights, "2", "2", "4"]),
        ];
        for (name, dims) in [("shapes", vec![2.into(), 2.into()]), ("starts", vec![2.into()])] {
            inputs.push(ValueInfo::tensor(name, data_type::INT64, Some(dims)));
        }
        model(std::slice::from_ref(&op), &inputs)
    };
    // An encoder has as many queries as pixels.
    let start = with_queries("7", "7");
    for start in [&start, &with_queries("q", "s"), &with_queries("q", "q")] {
        for form in [Form::GridSample, Form::Gather] {
            let result = done(start, form);
            assert_eq!(result.left, []);
            assert!(result.rewritten[0].max_error.is_some_and(|error| error < 1e-9), "{form}");
        }
    }
    let result = rewrite(&start, Runtime::Ncnn, Options::default()).unwrap();
    assert!(one_reason(&result.left).contains("no constants"), "{:?}", result.left);
    let plugin = done(&start, Form::TensorRt).model.unwrap();
    let casts = Model::read(&plugin).unwrap().nodes.iter().filter(|node| node.is("Cast")).count();
    assert_eq!(casts, 2, "the plugin takes 32-bit numbers");
    assert_eq!(done(&plugin, Form::MsDeform).left, []);
}

/// One level as some exporter may write it: points of one level, with the pieces that tests exchange.
fn by_hand(factor: f64, sampler: Node, tail: &[Node]) -> Vec<Node> {
    let mut nodes = vec![
        ints("level", &[4], &[4, 3, 3, 4]),
        node("", "Transpose", &["value"], &["moved"]).with(Attribute::ints("perm", &[0, 2, 3, 1])),
        node("", "Reshape", &["moved", "level"], &["image"]),
        floats("two", &[], &[factor]),
        floats("minus one", &[1], &[-1.0]),
        node("", "Mul", &["two", "locations"], &["doubled"]),
        node("", "Add", &["doubled", "minus one"], &["grid6"]),
        node("", "Transpose", &["grid6"], &["grid5"])
            .with(Attribute::ints("perm", &[0, 2, 1, 3, 4])),
        ints("grid shape", &[4], &[4, 5, 4, 2]),
        node("", "Reshape", &["grid5", "grid shape"], &["grid"]),
        sampler,
        node("", "Transpose", &["weights"], &["weights4"])
            .with(Attribute::ints("perm", &[0, 2, 1, 3])),
        ints("weight shape", &[4], &[4, 1, 5, 4]),
        node("", "Reshape", &["weights4", "weight shape"], &["shares"]),
        node("", "Mul", &["shares", "samples"], &["products"]),
        ints("last", &[1], &[3]),
        node("", "ReduceSum", &["products", "last"], &["sums"]).with(Attribute::int("keepdims", 0)),
    ];
    nodes.extend_from_slice(tail);
    nodes
}

fn sampler() -> Node {
    node("", "GridSample", &["image", "grid"], &["samples"])
}

fn tail() -> Vec<Node> {
    vec![
        ints("whole", &[3], &[2, HEADS * CHANNELS, 5]),
        node("", "Reshape", &["sums", "whole"], &["rows"]),
        node("", "Transpose", &["rows"], &["output"]).with(Attribute::ints("perm", &[0, 2, 1])),
    ]
}

fn by_hand_inputs() -> [ValueInfo; 3] {
    [
        info("value", &["2", "12", "2", "3"]),
        info("locations", &["2", "5", "2", "4", "2"]),
        info("weights", &["2", "5", "2", "4"]),
    ]
}

fn hand_written(nodes: &[Node]) -> Vec<u8> {
    model(nodes, &by_hand_inputs())
}

#[test]
fn a_spelling_that_no_package_has_is_recognised_by_what_it_computes() {
    let bytes = hand_written(&by_hand(2.0, sampler(), &tail()));
    let report = inspect(&bytes, Options::default()).unwrap();
    assert_eq!((report.sites.len(), report.left), (1, vec![]));
    assert_eq!(report.sites[0].inputs, ["value", "locations", "weights"]);
    let result = done(&bytes, Form::TensorRt);
    let nodes = Model::read(&result.model.unwrap()).unwrap().nodes;
    // Two constants, rank 6 and rank 5 with a constant each, the plugin, and heads and channels together.
    assert_eq!(nodes.len(), 9, "{nodes:#?}");
}

#[test]
fn sizes_of_tensors_that_nobody_knows_are_followed_through_their_shapes() {
    let mut nodes = vec![
        node("", "Shape", &["raw"], &["raw shape"]),
        ints("second", &[], &[1]),
        node("", "Gather", &["raw shape", "second"], &["queries"]),
        ints("front", &[1], &[0]),
        node("", "Unsqueeze", &["queries", "front"], &["queries1"]),
        ints("two images", &[1], &[2]),
        ints("rest", &[2], &[HEADS, 4]),
        node("", "Concat", &["two images", "queries1", "rest"], &["target"])
            .with(Attribute::int("axis", 0)),
        node("", "Reshape", &["raw", "target"], &["weights"]),
    ];
    nodes.extend(by_hand(2.0, sampler(), &tail()));
    let [value, locations, _] = by_hand_inputs();
    let raw = ValueInfo { name: "raw".into(), r#type: None };
    let report = inspect(&model(&nodes, &[value, locations, raw]), Options::default()).unwrap();
    assert_eq!((report.sites.len(), &report.left[..]), (1, &[][..]));
    assert_eq!(report.sites[0].inputs[2], "weights");
}

#[test]
fn grids_in_f64_beside_values_in_f32_are_written_again() {
    let mut nodes = by_hand(2.0, sampler(), &tail());
    let cast = |from: &str, to: &str| {
        node("", "Cast", &[from], &[to]).with(Attribute::int("to", i64::from(data_type::DOUBLE)))
    };
    let at = nodes.iter().position(|node| node.is("GridSample")).unwrap();
    nodes[at] = node("", "GridSample", &["image", "wide grid"], &["samples"]);
    nodes.insert(at, cast("grid", "wide grid"));
    let result = done(&hand_written(&nodes), Form::GridSample);
    assert_eq!((result.rewritten.len(), result.kept.len()), (1, 0), "{:?}", result.left);
    let nodes = Model::read(&result.model.unwrap()).unwrap().nodes;
    assert!(!nodes.iter().any(|node| node.is("Cast")), "the locations are in f32 before");
}

#[test]
fn another_scale_of_the_locations_is_written_out() {
    let bytes = hand_written(&by_hand(4.0, sampler(), &tail()));
    let result = done(&bytes, Form::MsDeform);
    assert_eq!(result.rewritten.len(), 1, "{:?}", result.left);
    let nodes = Model::read(&result.model.unwrap()).unwrap().nodes;
    assert!(nodes.iter().any(|node| node.is("Mul")), "{nodes:#?}");
}

#[test]
fn what_is_not_the_attention_is_left_alone_with_a_reason_and_its_bytes() {
    let aligned = sampler().with(Attribute::int("align_corners", 1));
    let border = sampler().with(Attribute::text("padding_mode", "border"));
    let swapped = node("", "GridSample", &["image", "flipped"], &["samples"]);
    let mut flipped = by_hand(2.0, swapped, &tail());
    let at = flipped.iter().position(|node| node.is("GridSample")).unwrap();
    flipped.insert(at, ints("xy", &[2], &[1, 0]));
    flipped.insert(
        at + 1,
        node("", "Gather", &["grid", "xy"], &["flipped"]).with(Attribute::int("axis", 3)),
    );
    let mut other_axis = by_hand(2.0, sampler(), &[]);
    other_axis.retain(|node| node.output[0] != "last");
    other_axis.insert(0, ints("last", &[1], &[2]));
    let unordered = [node("", "Identity", &["sums"], &["output"])];
    for (nodes, expected) in [
        (by_hand(2.0, aligned, &tail()), "corners not aligned"),
        (by_hand(2.0, border, &tail()), "zeros outside"),
        (flipped, "locations are not recognised"),
        (other_axis, "not that over levels and points"),
        (by_hand(2.0, sampler(), &unordered), "order [N, Lq, M * D]"),
    ] {
        let bytes = hand_written(&nodes);
        let result = done(&bytes, Form::MsDeform);
        assert!(one_reason(&result.left).contains(expected), "{expected}: {:?}", result.left);
        assert_eq!(result.model, None);
    }
    let alone = hand_written(&[node("", "GridSample", &["value", "locations"], &["output"])]);
    let report = inspect(&alone, Options::default()).unwrap();
    assert!(one_reason(&report.left).contains("not weighted"));
}

#[test]
fn what_others_use_stays_and_what_nobody_needs_goes() {
    let mut nodes = by_hand(2.0, sampler(), &tail());
    nodes.push(node("", "Relu", &["grid"], &["also used"]));
    let mut graph = Vec::new();
    // A subgraph that takes `shares` from around it: field 1 of a graph is a node.
    let inner = prost::Message::encode_to_vec(&node("", "Relu", &["shares"], &["inner"]));
    put(&mut graph, 1, &inner);
    let body = Attribute {
        name: "then_branch".into(),
        g: Some(graph.into()),
        r#type: 5,
        ..Attribute::default()
    };
    nodes.push(node("", "If", &["also used"], &["branch"]).with(body));
    let result = done(&hand_written(&nodes), Form::Mmdeploy);
    let left = Model::read(&result.model.unwrap()).unwrap().nodes;
    let made: Vec<&str> = left.iter().flat_map(|node| &node.output).map(String::as_str).collect();
    for kept in ["grid", "also used", "shares", "branch", "output"] {
        assert!(made.contains(&kept), "{kept}: {made:?}");
    }
    for gone in ["image", "samples", "products", "sums", "rows", "last"] {
        assert!(!made.contains(&gone), "{gone}: {made:?}");
    }
}

#[test]
fn fields_that_nobody_knows_and_domains_of_others_survive() {
    let mut bytes = hand_written(&by_hand(2.0, sampler(), &tail()));
    let unknown = [0xfa, 0x3e, 3, b'a', b'b', b'c']; // field 1007
    bytes.extend(unknown);
    let result = done(&bytes, Form::TensorRt).model.unwrap();
    assert!(result.windows(unknown.len()).any(|window| window == unknown));
    let opsets = Model::read(&result).unwrap().opsets;
    let domains: Vec<(&str, i64)> =
        opsets.iter().map(|id| (id.domain.as_str(), id.version)).collect();
    assert_eq!(domains, [("", 17), (MSDEFORM, 1), (MMDEPLOY, 1), ("trt.plugins", 1)]);
}

#[test]
fn offsets_and_logits_become_locations_and_weights() {
    for (references, anchors, expected) in
        [(["2", "2"], 0, 5), (["1", "4"], 0, 5), (["2", "4"], 1, 5)]
    {
        let inputs = ["value", "shapes", "starts", "references", "offsets", "logits"];
        let op = node(MSDEFORM, "MSDeformAttnFromOffsets", &inputs, &["output"])
            .with(Attribute::int("anchors", anchors));
        let nodes = [ints("shapes", &[2, 2], &LEVELS), ints("starts", &[2], &[0, 12]), op];
        let infos = [
            info("value", &["n", "14", "2", "3"]),
            info("references", &["n", "lq", references[0], references[1]]),
            info("offsets", &["n", "lq", "2", "2", "4", "2"]),
            info("logits", &["n", "lq", "2", "2", "4"]),
        ];
        let bytes = model(&nodes, &infos);
        let result = done(&bytes, Form::GridSample);
        assert_eq!(result.left, []);
        assert!(result.rewritten[0].max_error.is_some_and(|error| error < 1e-9));
        let report = inspect(&result.model.unwrap(), Options::default()).unwrap();
        assert_eq!(report.sites[0].nodes.len() + 2, expected, "two samplers and the sum");
        assert_eq!(done(&bytes, Form::MsDeform).kept.len(), 1);
    }
}

#[test]
fn a_probe_is_a_model_of_the_site_alone() {
    let standard = done(&one_node(vec![], &["2", "4"]), Form::GridSample).model.unwrap();
    let found = probes(&standard, Options::default()).unwrap();
    let [probe] = &found[..] else { panic!("{found:?}") };
    assert_eq!(probe.levels, [[3, 4, 0], [2, 1, 12]]);
    let cut_out = Model::read(&probe.model).unwrap();
    assert_eq!(cut_out.inputs.len(), 3);
    assert_eq!(cut_out.outputs.len(), 4);
    let report = inspect(&probe.model, Options::default()).unwrap();
    assert_eq!(report.sites.len(), 1, "{report:?}");
}

#[test]
fn unsorted_nodes_come_out_sorted() {
    let mut nodes = by_hand(2.0, sampler(), &tail());
    nodes.reverse();
    let report = inspect(&hand_written(&nodes), Options::default()).unwrap();
    assert_eq!((report.sites.len(), report.left), (1, vec![]));
    let sorted = Model::read(&done(&hand_written(&nodes), Form::Mmdeploy).model.unwrap()).unwrap();
    let at = |name: &str| sorted.nodes.iter().position(|node| node.output[0] == name);
    for node in &sorted.nodes {
        let own = at(&node.output[0]);
        assert!(node.input.iter().all(|input| at(input) < own), "{node:?}");
    }
}

#[test]
fn a_graph_that_needs_its_own_results_is_an_error() {
    let nodes = [
        node("", "Relu", &["b"], &["a"]),
        node("", "Relu", &["a"], &["b"]),
        node("", "Relu", &["value"], &["output"]),
    ];
    let error = inspect(&hand_written(&nodes), Options::default()).unwrap_err();
    assert!(error.to_string().contains("cycle: `node of a`"), "{error}");
}

#[test]
fn attention_in_subgraphs_is_named() {
    let mut graph = Vec::new();
    let inner = node("", "GridSample", &["value", "locations"], &["inner"]);
    put(&mut graph, 1, &prost::Message::encode_to_vec(&inner));
    let body = Attribute {
        name: "then_branch".into(),
        g: Some(graph.into()),
        r#type: 5,
        ..Attribute::default()
    };
    let branch = node("", "If", &["value"], &["output"]).with(body);
    let report = inspect(&hand_written(&[branch]), Options::default()).unwrap();
    assert_eq!(report.hidden, 1);
    assert_eq!(report.left[0].node, "node of inner");
    assert!(one_reason(&report.left).contains("subgraph"));
}

#[test]
fn gathers_that_are_no_attention_are_named() {
    let mut nodes = vec![
        node("", "Floor", &["locations"], &["whole"]),
        node("", "Cast", &["whole"], &["index"]).with(Attribute::int("to", 7)),
    ];
    let gather = node("", "GatherND", &["value", "index"], &["output"]);
    nodes.push(gather);
    let report = inspect(&hand_written(&nodes), Options::default()).unwrap();
    assert!(one_reason(&report.left).contains("1 gathers take pixels at 1 rounded"), "{report:?}");
}

#[test]
fn bytes_that_are_no_model_are_an_error() {
    for bytes in [&b""[..], b"abc", &[0x3a, 0xff, 0x01]] {
        assert!(inspect(bytes, Options::default()).is_err(), "{bytes:?}");
    }
}

#[test]
fn weights_in_other_files_are_named() {
    let mut tensor = Tensor::of_ints(&[1], &[0], true);
    tensor.data_location = 1;
    let entry =
        |key: &str, value: &str| crate::proto::Entry { key: key.into(), value: value.into() };
    tensor.external_data = vec![entry("location", "weights.bin")];
    let report =
        inspect(&hand_written(&[Node::constant("far", tensor)]), Options::default()).unwrap();
    assert_eq!(report.external_files, ["weights.bin"]);
}
