use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::time::Duration;

use fencepost::api::{Events, Hints, Limits, Metrics, Readiness, State, Waits, grpc, http};
use fencepost::proto::producer::producer_service_client::ProducerServiceClient;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Server};

use super::TestDb;

/// The producers' side of one replica over a database of its own: real servers on loopback.
pub struct Producers {
    pub db: TestDb,
    pub state: State,
    pub http: SocketAddr,
    pub grpc: ProducerServiceClient<Channel>,
    pub readiness: watch::Sender<Readiness>,
    pub shutdown: CancellationToken,
    client: Client<HttpConnector, Full<bytes::Bytes>>,
    _servers: JoinSet<()>,
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub content_type: String,
    pub allow: String,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Of a problem: status, code and field.
    pub fn problem(&self) -> (u16, String, String) {
        assert_eq!(self.content_type, "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        assert!(
            problem["detail"].as_str().unwrap().ends_with('.'),
            "{problem}"
        );
        let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
        (self.status, text("code"), text("field"))
    }
}

impl Producers {
    pub async fn start() -> Self {
        Self::with(Limits::default()).await
    }

    pub async fn with(limits: Limits) -> Self {
        let db = TestDb::new().await;
        let pool = db.pool();
        let shutdown = CancellationToken::new();
        let (waits, poller) = Waits::new(pool.clone(), Hints::none(), shutdown.clone());
        let (events, watcher) = Events::new(pool.clone(), shutdown.clone());
        let (_, hub) = watch::channel(None);
        let (readiness, ready) = watch::channel(Readiness::default());
        let state = State {
            pool,
            waits,
            hub,
            readiness: ready,
            limits,
            metrics: Metrics::default(),
            events,
            show_payloads: true,
        };
        let mut servers = JoinSet::new();
        servers.spawn(poller.run(CancellationToken::new()));
        servers.spawn(watcher.run(CancellationToken::new()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = listener.local_addr().unwrap();
        let router = http::router(state.clone());
        servers.spawn(async move { axum::serve(listener, router).await.unwrap() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = grpc::server(state.clone());
        servers.spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            let server = Server::builder().add_service(service);
            server.serve_with_incoming(incoming).await.unwrap();
        });
        let channel = Channel::from_shared(format!("http://{address}"))
            .unwrap()
            .connect_lazy();
        Self {
            db,
            state,
            http,
            grpc: ProducerServiceClient::new(channel),
            readiness,
            shutdown,
            client: Client::builder(TokioExecutor::new()).build_http(),
            _servers: servers,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "application/json", "").await
    }

    /// A GET with these headers, and its answer as it comes.
    pub async fn raw(
        &self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> axum::http::Response<hyper::body::Incoming> {
        let mut request = axum::http::Request::builder().uri(format!("http://{}{path}", self.http));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::default()).unwrap();
        self.client.request(request).await.unwrap()
    }

    pub async fn post(&self, path: &str, body: impl Into<bytes::Bytes>) -> Answer {
        self.request("POST", path, "application/json", body).await
    }

    pub async fn request(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: impl Into<bytes::Bytes>,
    ) -> Answer {
        let request = axum::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.http))
            .header("content-type", content_type)
            .body(Full::new(body.into()))
            .unwrap();
        let response = self.client.request(request).await.unwrap();
        let header = |name| {
            let value = response.headers().get(name);
            value
                .map_or("", |value: &axum::http::HeaderValue| {
                    value.to_str().unwrap()
                })
                .to_owned()
        };
        Answer {
            status: response.status().as_u16(),
            content_type: header("content-type"),
            allow: header("allow"),
            text: {
                let body = response.into_body().collect().await.unwrap().to_bytes();
                String::from_utf8(body.to_vec()).unwrap()
            },
        }
    }

    /// Runs the program itself, with this database.
    pub async fn command(&self, args: &[&str], stdin: &[u8]) -> Output {
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .args(args)
            .env("DATABASE_URL", self.db.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let feeding = async move {
            // A program that has seen enough hangs up.
            input.write_all(stdin).await.ok();
        };
        let ((), output) = tokio::join!(feeding, child.wait_with_output());
        output.unwrap()
    }

    /// Ends a task as a worker's report would: 1 done, 2 failed, 3 cancelled.
    pub async fn end(&self, id: i64, state: i16, result: Option<&str>) {
        let client = self.db.connect().await;
        let ended = client
            .execute(
                "with ended as (delete from fencepost.live where id = $1 returning *)
                 insert into fencepost.outcome (id, ended_at, attempt, state, error_class, result_type, result)
                 select id, now(), attempt, $2::smallint, case when $2::smallint = 2 then 'boom' end,
                    case when $3::text is not null then 'application/json' end, convert_to($3::text, 'UTF8')
                 from ended",
                &[&id, &state, &result],
            )
            .await
            .unwrap();
        assert_eq!(ended, 1);
    }

    /// Returns once a replica or program asks the database for the ends of tasks that somebody waits for.
    pub async fn somebody_waits(&self) {
        let client = self.db.connect().await;
        super::eventually(Duration::from_secs(20), async || {
            let asked: i64 = client
                .query_one(
                    "select count(*) from pg_stat_activity
                     where datname = current_database() and query like '-- Which of the tasks have ended%'",
                    &[],
                )
                .await
                .unwrap()
                .get(0);
            (asked > 0).then_some(())
        })
        .await;
    }
}
