//! Chromium without a window, told what to do over a pair of pipes: its debugging protocol, one JSON document after
//! the other, each ended by a zero byte. No port, no socket, no client library.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::process::on_path;
use crate::setup;

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Nothing that is asked here takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The browser of this machine; installed where that is ours to do.
pub fn find() -> Result<PathBuf> {
    if on_path(&NAMES).is_none() {
        setup::apt_install(&["chromium"]).context("no browser (chromium or google-chrome)")?;
    }
    on_path(&NAMES).context("no browser, even after installing chromium")
}

/// A running browser with one page.
pub struct Chromium {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    last_id: u64,
    session: Option<String>,
    /// Everything that it reported on its own.
    pub events: Vec<Value>,
}

impl Chromium {
    /// Starts the browser with an empty profile in a folder.
    pub fn start(program: &Path, profile: &Path) -> Result<Self> {
        // The shell hands its standard streams on as the descriptors 3 and 4 that the browser listens on.
        let script = "exec \"$0\" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
                      --remote-debugging-pipe --user-data-dir=\"$1\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .args([program, profile])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the browser")?;
        let input = child.stdin.take().context("the browser has no input")?;
        let output = child.stdout.take().context("the browser has no output")?;
        let (send, messages) = channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut text = Vec::new();
            while output.read_until(0, &mut text).is_ok_and(|read| read > 0) {
                text.pop();
                let message = serde_json::from_slice(&text);
                text.clear();
                if message.is_ok_and(|message| send.send(message).is_err()) {
                    break;
                }
            }
        });
        let mut browser =
            Self { child, input, messages, last_id: 0, session: None, events: Vec::new() };
        let target = browser.ask("Target.createTarget", &json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.ask("Target.attachToTarget", &attach)?;
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        ensure!(browser.session.is_some(), "the browser opened no page");
        Ok(browser)
    }

    /// One question of the protocol, answered.
    pub fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.input
            .write_all(message.to_string().as_bytes())
            .and_then(|()| self.input.write_all(b"\0"))?;
        self.input.flush()?;
        let mut answer = self.next(method, |message| message["id"] == id)?;
        if let Some(error) = answer.get("error") {
            bail!("{method}: {error}");
        }
        Ok(answer["result"].take())
    }

    /// Waits until something was reported.
    pub fn wait_for(&mut self, event: &str) -> Result<()> {
        if self.events.iter().any(|seen| seen["method"] == event) {
            return Ok(());
        }
        let seen = self.next(event, |message| message["method"] == event)?;
        self.events.push(seen);
        Ok(())
    }

    /// The value of an expression in the page.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.ask("Runtime.evaluate", &params)?;
        ensure!(answer.get("exceptionDetails").is_none(), "`{expression}` threw: {answer}");
        Ok(answer["result"]["value"].take())
    }

    fn next(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let message = self.messages.recv_timeout(left);
            let message = message.with_context(|| format!("the browser did not answer: {what}"))?;
            if wanted(&message) {
                return Ok(message);
            }
            if message.get("method").is_some() {
                self.events.push(message);
            }
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // Its children go with it.
        self.session = None;
        let closed = self.ask("Browser.close", &json!({})).is_ok();
        if !closed {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
