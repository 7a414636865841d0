//! A headless Chromium, driven by the WebDriver protocol (W3C) through `chromedriver`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What may take so long on the slowest machine there is.
const PATIENCE: Duration = Duration::from_secs(240);

/// A browser that does not outlive the test.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts one; `None`, with a line that says so, where none is installed.
    pub fn start() -> Option<Self> {
        let has = |program: &str| {
            let mut command = Command::new(program);
            command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        if !has("chromedriver") || !has("chromium") {
            let is_required = std::env::var_os("ZBELASTIC_TOOLS_REQUIRED").is_some();
            assert!(!is_required, "chromium and chromedriver are required here");
            println!("skipped: chromium or chromedriver is not installed");
            return None;
        }
        let port =
            TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it").port();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null());
        let driver = command.spawn().expect("it runs");
        let mut browser = Self { driver, port, session: String::new() };
        browser.poll("chromedriver listens", |browser| {
            TcpStream::connect(("127.0.0.1", browser.port)).is_ok()
        });
        // Tests run in containers, as root and without shared memory.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--window-size=1440,1000",
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": arguments },
        } } });
        let session = browser.send("POST", "/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().expect("an id"));
        Some(browser)
    }

    pub fn open(&self, address: &str) {
        self.command("/url", &json!({ "url": address }));
    }

    /// Runs a script in the page, and returns its value.
    pub fn run(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until a script returns true.
    pub fn wait(&self, what: &str, script: &str) {
        self.poll(what, |browser| browser.run(script) == json!(true));
    }

    pub fn press(&self, key: &str) {
        // A key with a name of several letters writes nothing.
        let mut key =
            json!({ "key": key, "type": if key.len() == 1 { "keyDown" } else { "rawKeyDown" } });
        if key["type"] == "keyDown" {
            key["text"] = key["key"].clone();
        }
        self.chrome("Input.dispatchKeyEvent", &key);
    }

    /// A command of Chrome's own protocol.
    pub fn chrome(&self, command: &str, parameters: &Value) -> Value {
        let named = json!({ "cmd": command, "params": parameters });
        self.command("/goog/cdp/execute", &named)
    }

    pub fn resize(&self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.chrome("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Errors of scripts and refused loads that the browser logged.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.command("/se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().expect("a list").iter();
        let severe = lines.filter(|line| line["level"] == "SEVERE");
        severe.map(|line| line["message"].to_string()).collect()
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.send("POST", &format!("{}{path}", self.session), body)
    }

    fn poll(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "{what} did not happen");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        // The driver keeps connections open.
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).expect("a head");
            let header = line.trim().to_ascii_lowercase();
            if let Some(found) = header.strip_prefix("content-length:") {
                length = found.trim().parse().expect("a number");
            }
            if header.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).expect("a body");
        let answer: Value = serde_json::from_slice(&body).expect("JSON");
        let value = &answer["value"];
        assert!(value["error"].is_null(), "{path}: {value}");
        value.clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its session; without one there is none.
        if !self.session.is_empty() && !std::thread::panicking() {
            self.send("DELETE", &self.session, &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
