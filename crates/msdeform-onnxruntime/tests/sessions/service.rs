//! The example's service, on loopback: a small detector made here, its boxes, and requests that make no sense.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use libtest_mimic::Trial;
use msdeform::{Offsets, Problem};
use serde_json::Value;

use crate::model::data_type::FLOAT;
use crate::model::{Attribute, floats, ints, model, node, port};
use crate::server::{Limits, Server, load};
use crate::{Outcome, environment};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("the_service_answers_with_the_boxes_of_the_model", boxes),
        Trial::test("the_service_refuses_in_words_and_lives_on", refusals),
        Trial::test("the_service_loads_no_model_that_it_does_not_understand", wrong_model),
    ]
}

const QUERIES: usize = 6;
const POINTS: usize = 2;
const THRESHOLD: f32 = 0.65;

/// A detector of one layer: the pixels are the values, their three channels the classes, the references the boxes.
fn detector(boxes_output: &str) -> Vec<u8> {
    let (references, offsets, weights) = layer();
    let (queries, points) = (QUERIES as i64, POINTS as i64);
    let inputs = ["value", "shapes", "starts", "references", "offsets", "weights"];
    let nodes = [
        ints("value_shape", &[4], &[1, -1, 1, 3]),
        ints("two", &[1], &[2]),
        ints("four", &[1], &[4]),
        ints("one_level", &[2], &[1, 2]),
        ints("starts", &[1], &[0]),
        ints("boxes_shape", &[3], &[1, queries, 4]),
        floats("references", &[1, queries, 1, 4], &references),
        floats("offsets", &[1, queries, 1, 1, points, 2], &offsets),
        floats("weights", &[1, queries, 1, 1, points], &weights),
        node("", "Transpose", &["image"], "rows").with(Attribute::ints("perm", &[0, 2, 3, 1])),
        node("", "Reshape", &["rows", "value_shape"], "value"),
        node("", "Shape", &["image"], "sizes"),
        node("", "Slice", &["sizes", "two", "four"], "size"),
        node("", "Reshape", &["size", "one_level"], "shapes"),
        node("msdeform", "MSDeformAttnFromOffsets", &inputs, "logits"),
        node("", "Reshape", &["references", "boxes_shape"], boxes_output),
    ];
    let outputs = [port("logits", FLOAT, 3), port(boxes_output, FLOAT, 3)];
    model(&nodes, &[port("image", FLOAT, 4)], &outputs)
}

/// Numbers between 0 and 1.
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|index| ((index * 7919 + seed * 104_729) % 1009) as f32 / 1009.0).collect()
}

fn layer() -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let samples = QUERIES * POINTS;
    (numbers(4 * QUERIES, 5), numbers(2 * samples, 6), numbers(samples, 7))
}

/// The logits that the detector should give.
fn logits(image: &[f32], height: usize, width: usize) -> Result<Vec<f32>, msdeform::Error> {
    let problem = Problem::builder().channels(3).queries(QUERIES).points(POINTS);
    let problem =
        problem.levels([(height as i64, width as i64)]).offsets(Offsets::from_boxes()).build()?;
    let pixels = height * width;
    let value: Vec<f32> =
        (0..3 * pixels).map(|index| image[index % 3 * pixels + index / 3]).collect();
    let (references, offsets, weights) = layer();
    let mut output = vec![f32::NAN; problem.output_len()];
    msdeform::forward(&problem, [&value, &references, &offsets, &weights], &mut output)?;
    Ok(output)
}

/// Serves the detector while `visit` runs, then stops.
fn with_service(visit: impl FnOnce(SocketAddr) -> Outcome) -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("detector.onnx");
    std::fs::write(&file, detector("pred_boxes"))?;
    let session = load(environment(), &file, Some(2)).map_err(|error| format!("{error:#}"))?;
    let limits = Limits { body_bytes: 1 << 16, threshold: THRESHOLD };
    let server = Server::listen("127.0.0.1:0", session, limits).map_err(|e| e.to_string())?;
    std::thread::scope(|scope| {
        let running = scope.spawn(|| server.run());
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| visit(server.address())));
        server.stop();
        // It ends by itself: a test that waits for ever here has found a service that does not stop.
        running.join().map_err(|_| "the service panicked")?;
        outcome.unwrap_or_else(|_| Err("the visit panicked".into()))
    })
}

/// Status and body of an answer.
fn request(address: SocketAddr, line: &str, body: &[u8]) -> Result<(u16, Value), std::io::Error> {
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    // A service that refuses need not have read everything.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}

fn boxes() -> Outcome {
    with_service(|address| {
        let (references, ..) = layer();
        let mut counts = (0, 0);
        for (height, width) in [(8, 6), (5, 11), (8, 6)] {
            let image: Vec<f32> =
                numbers(3 * height * width, height).iter().map(|x| x * 4.0 - 2.0).collect();
            let body: Vec<u8> = image.iter().flat_map(|x| x.to_le_bytes()).collect();
            let line = format!("POST /detect?shape=1,3,{height},{width}");
            let (status, answer) = request(address, &line, &body)?;
            assert_eq!(status, 200, "{answer}");
            let mut wanted = Vec::new();
            for (query, scores) in logits(&image, height, width)?.chunks(3).enumerate() {
                let best = (0..3).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap();
                let score = 1.0 / (1.0 + (-scores[best]).exp());
                if score >= THRESHOLD {
                    wanted.push((best, score, query));
                }
            }
            let found = answer["images"][0].as_array().unwrap();
            assert_eq!(found.len(), wanted.len(), "{answer}");
            counts.0 += wanted.len();
            counts.1 += QUERIES;
            for (found, (label, score, query)) in found.iter().zip(wanted) {
                assert_eq!(found["label"], label);
                assert!(
                    (found["score"].as_f64().unwrap() - f64::from(score)).abs() < 1e-5,
                    "{found}"
                );
                let corners: Vec<f32> = found["box"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|x| x.as_f64().unwrap() as f32)
                    .collect();
                assert_eq!(corners, references[4 * query..4 * query + 4]);
            }
        }
        assert!(0 < counts.0 && counts.0 < counts.1, "nothing is told apart: {counts:?}");
        Ok(())
    })
}

fn refusals() -> Outcome {
    with_service(|address| {
        let full = vec![0u8; 4 * 3 * 4 * 4];
        for (line, body, status, words) in [
            ("POST /detect?shape=1,3,4,4", &full[..100], 400, "takes 192 bytes"),
            ("POST /detect?shape=1,3,4,3", &full[..], 400, "the body has more"),
            ("POST /detect", &full, 400, "say the image's shape"),
            ("POST /detect?shape=1,3,4,-4", &full, 400, "say the image's shape"),
            ("POST /detect?shape=1,3,4000,4000", &full, 413, "larger than 65536 bytes"),
            ("POST /detect?shape=9999999999,9999999999,9999999999,1", &full, 413, "larger than"),
            ("POST /detect?shape=1,1,4,12", &full, 422, "`value` has only 16 pixels"),
            ("GET /detect", &[], 405, "POST /detect"),
            ("GET /", &[], 404, "there is no /"),
        ] {
            let (found, answer) = request(address, line, body)?;
            let error = answer["error"].as_str().unwrap_or_default();
            assert!(found == status && error.contains(words), "{line}: {found} {answer}");
        }
        let (status, answer) = request(address, "GET /health", &[])?;
        assert_eq!((status, &answer["status"]), (200, &Value::from("ok")));
        let (status, _) = request(address, "POST /detect?shape=1,3,4,4", &full)?;
        assert_eq!(status, 200);
        Ok(())
    })
}

fn wrong_model() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("other.onnx");
    std::fs::write(&file, detector("boxes"))?;
    let error = load(environment(), &file, None).err().ok_or("it was loaded")?.to_string();
    assert!(error.contains("no output `pred_boxes`") && error.contains("boxes"), "{error}");
    std::fs::write(&file, "no model")?;
    let error = format!("{:#}", load(environment(), &file, None).err().ok_or("it was loaded")?);
    assert!(error.contains("other.onnx"), "{error}");
    Ok(())
}
