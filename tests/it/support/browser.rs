use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::{Replica, eventually};

/// What a page takes to show something, unless something is broken.
const STEP: Duration = Duration::from_secs(20);

/// Set to `required` where tests in a browser must not be skipped.
const SETTING: &str = "FENCEPOST_TEST_BROWSER";

/// The name by which `WebDriver` refers to an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys of `WebDriver`.
pub mod key {
    pub const TAB: &str = "\u{e004}";
    pub const ENTER: &str = "\u{e007}";
    pub const HOME: &str = "\u{e011}";
    pub const DOWN: &str = "\u{e015}";
}

/// A headless Chromium that shows the dashboard of one replica. All ends when it is dropped.
pub struct Browser {
    /// Its session at the driver.
    session: String,
    http: HttpClient<HttpConnector, Full<bytes::Bytes>>,
    // The browser leaves when the pipe to its driver closes.
    _driver: Child,
    _profile: TempDir,
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

impl Browser {
    /// Opens the dashboard; none where this machine has no driver and none is required.
    pub async fn open(replica: &Replica) -> Option<Self> {
        let found = find("chromedriver").zip(find("chromium"));
        let Some((driver, chromium)) = found else {
            let required = std::env::var(SETTING).is_ok_and(|value| value == "required");
            assert!(
                !required,
                "chromedriver and chromium are not installed, and {SETTING}=required"
            );
            println!("skipped: chromedriver and chromium are not on this machine");
            return None;
        };
        let profile = TempDir::new().unwrap();
        let mut child = Command::new(driver)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port: u16 = loop {
            let line = lines.next_line().await.unwrap().expect("the driver ended");
            let told = line.split_once("started successfully on port ");
            if let Some((_, port)) = told {
                break port.trim_end_matches('.').parse().unwrap();
            }
        };
        let driver = format!("http://127.0.0.1:{port}");
        let arguments = [
            "--headless=new".to_owned(),
            // Tests may run as root, where there is no sandbox.
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--remote-debugging-pipe".to_owned(),
            "--window-size=1440,1000".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": chromium, "args": arguments},
        }}});
        let mut browser = Self {
            session: format!("{driver}/session"),
            http: HttpClient::builder(TokioExecutor::new()).build_http(),
            _driver: child,
            _profile: profile,
        };
        let session = browser.ask("POST", "", wanted).await;
        browser.session = format!(
            "{driver}/session/{}",
            session["sessionId"].as_str().unwrap()
        );
        let page = format!("http://{}/", replica.http());
        browser.ask("POST", "/url", json!({"url": page})).await;
        Some(browser)
    }

    /// Shows a page of the dashboard, such as `tasks?state=failed`, and waits until it has loaded.
    pub async fn show(&self, page: &str) {
        let script = format!("location.hash = '#/{page}'");
        self.run(&script).await;
        self.loaded(page).await;
    }

    /// Waits until this page has loaded.
    pub async fn loaded(&self, page: &str) {
        let hash = format!("#/{page}");
        self.until(&format!(
            "document.getElementById('main').dataset.loaded === {}",
            json!(hash)
        ))
        .await;
    }

    /// Does something in the page and answers what it returns.
    pub async fn run(&self, script: &str) -> Value {
        self.ask(
            "POST",
            "/execute/sync",
            json!({"script": script, "args": []}),
        )
        .await
    }

    pub async fn value(&self, expression: &str) -> Value {
        self.run(&format!("return {expression}")).await
    }

    /// Waits until an expression is true there.
    pub async fn until(&self, expression: &str) {
        let looked = eventually(STEP * 2, async || {
            (self.value(expression).await == true).then_some(())
        });
        if tokio::time::timeout(STEP, looked).await.is_err() {
            let shown = self.text().await;
            panic!("never: {expression}\nthe page shows:\n{shown}");
        }
    }

    /// Waits until the page shows this text.
    pub async fn sees(&self, text: &str) {
        self.until(&format!(
            "document.body.innerText.includes({})",
            json!(text)
        ))
        .await;
    }

    /// What the page shows.
    pub async fn text(&self) -> String {
        let text = self.value("document.body.innerText").await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks the button, link or box of this name (its text, or what it is called for those who can't see it).
    pub async fn click(&self, name: &str) {
        let all = "[...document.querySelectorAll('dialog[open] button'), ...document.querySelectorAll('button, a, input')]";
        let matching = format!(
            "{all}.find((one) => (one.getAttribute('aria-label') ?? one.textContent).trim() === {} && !one.disabled)",
            json!(name)
        );
        self.until(&format!("{matching} !== undefined")).await;
        self.run(&format!("{matching}.click()")).await;
    }

    /// Types into whatever has the focus.
    pub async fn types(&self, keys: &str) {
        let focused = self.ask("GET", "/element/active", Value::Null).await;
        self.send(&focused, keys).await;
    }

    /// Types into the field of this name.
    pub async fn enters(&self, name: &str, text: &str) {
        let field = json!({"using": "css selector", "value": format!("[name={name}]")});
        let field = self.ask("POST", "/element", field).await;
        self.send(&field, text).await;
    }

    async fn send(&self, element: &Value, keys: &str) {
        let path = format!("/element/{}/value", element[ELEMENT].as_str().unwrap());
        self.ask("POST", &path, json!({"text": keys})).await;
    }

    pub async fn reload(&self) {
        self.ask("POST", "/refresh", json!({})).await;
    }

    /// Writes what the page looks like to `target/dashboard/NAME.png`.
    pub async fn picture(&self, name: &str) {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../dashboard");
        std::fs::create_dir_all(&folder).unwrap();
        let picture = self.ask("GET", "/screenshot", Value::Null).await;
        let picture = BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), picture).unwrap();
    }

    /// A command of Chromium's own protocol.
    pub async fn command(&self, command: &str, parameters: Value) {
        self.ask(
            "POST",
            "/goog/cdp/execute",
            json!({"cmd": command, "params": parameters}),
        )
        .await;
    }

    /// Errors of the console since the last look, failed requests and breaches of the page's policy among them.
    pub async fn errors(&self) -> Vec<String> {
        let entries = self
            .ask("POST", "/se/log", json!({"type": "browser"}))
            .await;
        let entries = entries.as_array().unwrap().iter();
        entries
            .filter(|entry| entry["level"] != "INFO" && entry["level"] != "DEBUG")
            .map(|entry| entry["message"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Asks the driver.
    async fn ask(&self, method: &str, path: &str, body: Value) -> Value {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = axum::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.session))
            .header("content-type", "application/json")
            .body(Full::new(body.clone().into()))
            .unwrap();
        let answer = self.http.request(request).await.unwrap();
        let status = answer.status();
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        let mut answer: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(status, 200, "{method} {path} {body}: {answer}");
        answer["value"].take()
    }

    /// Fails on any error of the console, and ends the browser.
    pub async fn close(self) {
        assert_eq!(self.errors().await, Vec::<String>::new());
        self.ask("DELETE", "", Value::Null).await;
    }
}
