//! The service itself: requests in, boxes out.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use ort::AsPointer;
use ort::environment::Environment;
use ort::session::Session;
use ort::value::{Outlet, TensorRef};
use serde_json::{Value, json};
use tiny_http::{Header, Method, Request, Response};

/// Requests that are read and answered at the same time. They compute one after the other, each on all threads.
const READERS: usize = 4;

/// What a request may ask for.
pub struct Limits {
    /// The longest body that is read.
    pub body_bytes: usize,
    /// The least score of a box that is returned.
    pub threshold: f32,
}

/// Loads a model, with msdeform's operators, and checks that it is one that this service understands.
pub fn load(environment: &Environment, model: &Path, threads: Option<usize>) -> Result<Session> {
    let mut builder = Session::builder(environment)?;
    if let Some(threads) = threads {
        builder = builder.with_intra_threads(threads).map_err(|error| anyhow!("{error}"))?;
    }
    // SAFETY: options and functions are of the same runtime.
    let status = unsafe { msdeform_onnxruntime::register(builder.ptr_mut(), ort::api()) };
    // SAFETY: these functions made the status, for us to take.
    unsafe { ort::Error::result_from_status(status)? };
    let session = builder.commit_from_file(model).with_context(|| model.display().to_string())?;
    ensure!(session.inputs().len() == 1, "{}: the model needs one input, images", model.display());
    for wanted in ["logits", "pred_boxes"] {
        let names = || session.outputs().iter().map(Outlet::name);
        ensure!(
            names().any(|name| name == wanted),
            "{}: no output `{wanted}` among {:?}",
            model.display(),
            names().collect::<Vec<_>>()
        );
    }
    Ok(session)
}

/// A service that listens.
pub struct Server {
    http: tiny_http::Server,
    address: SocketAddr,
    session: Mutex<Session>,
    limits: Limits,
    is_stopping: AtomicBool,
}

/// What a client did wrong, or we did: a status and words.
struct Refusal(u16, String);

impl Server {
    /// Begins to listen; requests wait until [`Server::run`].
    pub fn listen(address: &str, session: Session, limits: Limits) -> Result<Self> {
        let http =
            tiny_http::Server::http(address).map_err(|error| anyhow!("{address}: {error}"))?;
        let address = http.server_addr().to_ip().context("no address of the internet")?;
        let session = Mutex::new(session);
        Ok(Self { http, address, session, limits, is_stopping: AtomicBool::new(false) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until [`Server::stop`]; returns when those that were begun are answered.
    pub fn run(&self) {
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    while !self.is_stopping.load(Ordering::Acquire) {
                        // An error is one of a connection, or that of being woken up.
                        if let Ok(request) = self.http.recv() {
                            self.answer(request);
                        }
                    }
                });
            }
        });
    }

    /// Lets [`Server::run`] return.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        for _ in 0..READERS {
            self.http.unblock();
        }
    }

    fn answer(&self, mut request: Request) {
        let (status, body) = match self.respond(&mut request) {
            Ok(body) => (200, body),
            Err(Refusal(status, error)) => (status, json!({ "error": error })),
        };
        let mut response = Response::from_string(body.to_string()).with_status_code(status);
        if let Ok(header) = Header::from_bytes("Content-Type", "application/json") {
            response.add_header(header);
        }
        // A client that left does not want to know.
        let _ = request.respond(response);
    }

    fn respond(&self, request: &mut Request) -> Result<Value, Refusal> {
        let url = request.url().to_owned();
        let (path, query) = url.split_once('?').unwrap_or((&url, ""));
        match (request.method(), path) {
            (Method::Get, "/health") => Ok(json!({ "status": "ok" })),
            (Method::Post, "/detect") => {
                let shape = shape_of(query)?;
                let pixels = self.pixels(request, &shape)?;
                self.detect(&shape, &pixels).map_err(|error| Refusal(422, format!("{error:#}")))
            }
            (_, "/health" | "/detect") => {
                Err(Refusal(405, "use GET /health or POST /detect".into()))
            }
            _ => Err(Refusal(404, format!("there is no {path}; there are /health and /detect"))),
        }
    }

    /// The body as numbers, as many as the shape says, and no longer than is allowed.
    fn pixels(&self, request: &mut Request, shape: &[usize; 4]) -> Result<Vec<f32>, Refusal> {
        let limit = self.limits.body_bytes;
        let too_large = || Refusal(413, format!("the image is larger than {limit} bytes"));
        let product = shape.iter().try_fold(4usize, |product, &size| product.checked_mul(size));
        let wanted = product.filter(|&bytes| bytes <= limit).ok_or_else(too_large)?;
        if request.body_length().is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let mut body = Vec::new();
        let read = request.as_reader().take(wanted as u64 + 1).read_to_end(&mut body);
        read.map_err(|error| Refusal(400, format!("the body cannot be read: {error}")))?;
        if body.len() != wanted {
            let found = if body.len() > wanted { "more" } else { "fewer" };
            let text = format!(
                "{shape:?} takes {wanted} bytes of little-endian f32, the body has {found}"
            );
            return Err(Refusal(400, text));
        }
        let (numbers, _) = body.as_chunks::<4>();
        Ok(numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
    }

    fn detect(&self, shape: &[usize; 4], pixels: &[f32]) -> Result<Value> {
        let image = TensorRef::from_array_view((*shape, pixels))?;
        let mut session =
            self.session.lock().map_err(|_| anyhow!("a run before this one broke"))?;
        let outputs = session.run(ort::inputs![image])?;
        let (logits_shape, logits) = outputs["logits"].try_extract_tensor::<f32>()?;
        let (boxes_shape, boxes) = outputs["pred_boxes"].try_extract_tensor::<f32>()?;
        let (&[images, queries, classes], &[_, _, 4]) = (&logits_shape[..], &boxes_shape[..])
        else {
            return Err(anyhow!("outputs of shapes {logits_shape:?} and {boxes_shape:?}"));
        };
        let size = |size: i64| usize::try_from(size).unwrap_or(0);
        let (queries, classes) = (size(queries).max(1), size(classes).max(1));
        ensure!(size(images) * queries * 4 == boxes.len(), "as many boxes as queries");
        let mut found = vec![Vec::new(); size(images)];
        for (query, (scores, corners)) in
            logits.chunks_exact(classes).zip(boxes.chunks_exact(4)).enumerate()
        {
            // NaN is never the largest.
            let best = scores.iter().enumerate().reduce(|a, b| if b.1 > a.1 { b } else { a });
            let Some((label, logit)) = best else { continue };
            let score = 1.0 / (1.0 + (-logit).exp());
            if score >= self.limits.threshold {
                found[query / queries]
                    .push(json!({ "label": label, "score": score, "box": corners }));
            }
        }
        Ok(json!({ "images": found }))
    }
}

/// `shape=1,3,640,640`.
fn shape_of(query: &str) -> Result<[usize; 4], Refusal> {
    let text = query.split('&').find_map(|part| part.strip_prefix("shape="));
    let sizes = text.unwrap_or_default().split(',').map(|size| size.parse().ok());
    let sizes: Option<Vec<usize>> = sizes.collect();
    sizes
        .and_then(|sizes| <[usize; 4]>::try_from(sizes).ok())
        .filter(|sizes| sizes.iter().all(|&size| size > 0))
        .ok_or_else(|| Refusal(400, "say the image's shape: /detect?shape=1,3,640,640".into()))
}
