//! A detector as a service: an ONNX model with msdeform's operators behind HTTP.
//!
//! ```sh
//! cargo run --release -p msdeform-onnxruntime --example serve -- model.onnx --runtime path/to/libonnxruntime.so
//! curl --data-binary @image.f32 'http://127.0.0.1:8080/detect?shape=1,3,640,640'
//! ```
//!
//! The model has one input, images `[N, 3, H, W]` as `f32`, and the outputs `logits` `[N, queries, classes]` and
//! `pred_boxes` `[N, queries, 4]`, as RT-DETR and its relatives are exported. SIGINT and SIGTERM end the service when the
//! requests that it has are answered.

#[path = "serve/server.rs"]
mod server;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use server::{Limits, Server};

/// Serves an ONNX model that contains msdeform's operators.
#[derive(Parser)]
struct Options {
    /// The model
    model: PathBuf,
    /// The runtime, libonnxruntime.so; without it `ORT_DYLIB_PATH`, else the system's
    #[arg(long)]
    runtime: Option<PathBuf>,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: String,
    /// Threads of a run; without it one for each core
    #[arg(long)]
    threads: Option<usize>,
    /// The largest request that is read, in MiB
    #[arg(long, default_value_t = 64)]
    max_body_mib: usize,
    /// The least score of a box that is returned
    #[arg(long, default_value_t = 0.5)]
    threshold: f32,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let environment = match &options.runtime {
        Some(runtime) => ort::init_from(runtime).with_context(|| runtime.display().to_string())?,
        None => ort::init(),
    };
    let environment = environment.build()?;
    let limits = Limits {
        body_bytes: options.max_body_mib.saturating_mul(1 << 20),
        threshold: options.threshold,
    };
    let session = server::load(&environment, &options.model, options.threads)?;
    let server = Server::listen(&options.listen, session, limits)?;
    println!("listening on http://{}", server.address());
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let handle = signals.handle();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if signals.forever().next().is_some() {
                server.stop();
            }
        });
        server.run();
        // If the server ended by itself, this ends the thread that waits for signals.
        handle.close();
    });
    println!("stopped");
    Ok(())
}
