use std::process::{Output, Stdio};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::exposition::Page;
use super::{Replica, eventually};

/// What a change takes to be seen over heartbeats and chores, unless something is broken.
const STEP: Duration = Duration::from_secs(20);

/// Somebody who asks one replica over HTTP.
#[derive(Debug)]
pub struct Operator {
    base: String,
    client: Client<HttpConnector, Full<bytes::Bytes>>,
}

impl Operator {
    pub fn of(replica: &Replica) -> Self {
        Self {
            base: format!("http://{}", replica.http()),
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    pub async fn call(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        self.call_as(&[], method, path, body).await
    }

    /// With further headers, such as what a browser says of the page that asks.
    pub async fn call_as(
        &self,
        headers: &[(&str, &str)],
        method: &str,
        path: &str,
        body: &str,
    ) -> (u16, Value) {
        let mut request = axum::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.to_owned().into())).unwrap();
        let response = self.client.request(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// What Prometheus would scrape.
    pub async fn scrape(&self) -> (Page, String) {
        let uri = format!("{}/metrics", self.base).parse().unwrap();
        let response = self.client.get(uri).await.unwrap();
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().unwrap();
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        (Page::parse(&text), text)
    }

    /// An answer that must be a good one.
    pub async fn get(&self, path: &str) -> Value {
        let (status, json) = self.call("GET", path, "").await;
        assert_eq!(status, 200, "{path}: {json}");
        json
    }

    /// A change that must be taken.
    pub async fn change(&self, method: &str, path: &str, body: &str) -> Value {
        let (status, json) = self.call(method, path, body).await;
        assert_eq!(status, 200, "{path}: {json}");
        json
    }

    pub async fn why(&self, task: i64) -> Value {
        self.get(&format!("/v1/tasks/{task}/why")).await
    }

    /// Waits until this is the verdict, and answers all of it.
    pub async fn stands(&self, task: i64, verdict: &str) -> Value {
        let last = parking_lot::Mutex::new(Value::Null);
        let found = eventually(STEP, async || {
            let why = self.why(task).await;
            let is_it = why["verdict"] == verdict;
            *last.lock() = why.clone();
            is_it.then_some(why)
        });
        tokio::time::timeout(STEP.mul_f64(0.9), found)
            .await
            .unwrap_or_else(|_| panic!("not {verdict} but {}", last.lock()))
    }

    /// The list of what nobody serves.
    pub async fn unserved(&self) -> Vec<Value> {
        let mut list = self.get("/v1/queues/unserved").await;
        serde_json::from_value(list["unserved"].take()).unwrap()
    }

    /// The worker of this name, waited for until `look` likes it.
    pub async fn worker(&self, identity: &str, look: impl Fn(&Value) -> bool) -> Value {
        eventually(STEP, async || {
            let list = self.get("/v1/workers").await;
            let workers = list["workers"].as_array().unwrap();
            let found = workers.iter().find(|one| one["identity"] == identity);
            found.filter(|one| look(one)).cloned()
        })
        .await
    }
}

/// Runs the real program against this database.
pub async fn fencepost(database: &str, args: &[&str]) -> Output {
    tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(args)
        .env("DATABASE_URL", database)
        .env("USER", "olga")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap()
}
