//! Owners of dead letters: told by webhook and NOTIFY, after the letter is stored, through failures and crashes.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_postgres::{AsyncMessage, Client};

use crate::lifecycle::SHORT;
use crate::support::letters::bury;
use crate::support::tasks::{count, enqueue};
use crate::support::{Operator, Producers, Replica, TestDb, eventually, fencepost};

const STEP: Duration = Duration::from_secs(20);
const SECRET: &str = "correct horse battery staple";

/// One request to the owner, who has not answered yet.
struct Post {
    event: String,
    signature: String,
    body: String,
    reply: oneshot::Sender<(u16, &'static str)>,
}

impl Post {
    fn answer(self, status: u16, body: &'static str) {
        self.reply.send((status, body)).ok();
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The signature is over the time and the body, by the secret.
    fn assert_signed(&self, secret: &str) {
        let (time, mac) = self.signature.split_once(",v1=").unwrap();
        let time = time.strip_prefix("t=").unwrap();
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!(time.parse::<u64>().unwrap().abs_diff(now) < 300, "{time}");
        let mut expected = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        expected.update(format!("{time}.{}", self.body).as_bytes());
        let bytes: Vec<u8> = (0..mac.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&mac[at..at + 2], 16).unwrap())
            .collect();
        expected.verify_slice(&bytes).unwrap();
    }
}

/// A real HTTP server whose answers the test gives.
struct Owner {
    url: String,
    posts: mpsc::Receiver<Post>,
    _server: JoinSet<()>,
}

impl Owner {
    async fn start() -> Self {
        async fn take(
            State(posts): State<mpsc::Sender<Post>>,
            headers: HeaderMap,
            body: String,
        ) -> (StatusCode, &'static str) {
            let header = |name: &str| {
                let value = headers.get(name).map(|value| value.to_str().unwrap());
                value.unwrap_or_default().to_owned()
            };
            assert_eq!(header("content-type"), "application/json");
            let (event, signature) = (header("fencepost-event-id"), header("fencepost-signature"));
            let (reply, answer) = oneshot::channel();
            let post = Post {
                event,
                signature,
                body,
                reply,
            };
            posts.send(post).await.ok();
            let (status, body) = answer.await.unwrap_or((500, ""));
            (StatusCode::from_u16(status).unwrap(), body)
        }
        let (sender, posts) = mpsc::channel(100);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/letters?for=me", listener.local_addr().unwrap());
        let router = axum::Router::new()
            .route("/letters", axum::routing::post(take))
            .with_state(sender);
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            posts,
            _server: server,
        }
    }

    async fn post(&mut self) -> Post {
        let post = tokio::time::timeout(STEP, self.posts.recv()).await;
        post.expect("the owner is told").unwrap()
    }
}

async fn hook(client: &Client, namespace: &str, url: &str) {
    let call = "select fencepost.set_dead_letter_hook($1, $2, $3)";
    client
        .query(call, &[&namespace, &url, &SECRET])
        .await
        .unwrap();
}

/// What the owner knows, as an operator sees it.
async fn owner_of(operator: &Operator, id: i64, look: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/v1/dead-letters/{id}");
    eventually(STEP, async || {
        let letter = operator.get(&path).await;
        look(&letter["owner"]).then_some(letter)
    })
    .await
}

const EVENTS: &str = "select count(*) from fencepost.dead_letter_event";

#[tokio::test]
async fn a_webhook_that_fails_twice_is_told_until_it_takes_the_letter() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let mut owner = Owner::start().await;
    hook(&client, "default", &owner.url).await;
    let replica = Replica::start(&db.url(), SHORT).await;
    let operator = Operator::of(&replica);
    let id = enqueue(&client, "'{\"secret\": 1}', labels => '{\"team\": \"x\"}'").await;
    bury(&db.pool(), "true").await;

    let first = owner.post().await;
    first.assert_signed(SECRET);
    let told = first.json();
    assert_eq!(
        (
            &told["event"],
            &told["task_id"],
            &told["cause"],
            &told["error_class"]
        ),
        (
            &json!("dead_letter"),
            &json!(id.to_string()),
            &json!("failed"),
            &json!("oops")
        )
    );
    assert_eq!(
        (&told["task_queue"], &told["labels"]["team"]),
        (&json!("q"), &json!("x"))
    );
    assert_eq!(told["event_id"], json!(first.event));
    assert!(!first.body.contains("secret"), "payloads stay here");
    let event = first.event.clone();
    // The letter was stored before anybody was told.
    let pending = owner_of(&operator, id, |owner| owner["pending"] == true).await;
    assert_eq!(pending["judged"], false);
    first.answer(500, "");
    let second = owner.post().await;
    assert_eq!(second.event, event, "an event keeps its id");
    second.answer(302, "");
    let third = owner.post().await;
    assert_eq!(third.event, event);
    third.assert_signed(SECRET);
    third.answer(204, "");
    let told = owner_of(&operator, id, |owner| owner["told_at"].is_string()).await;
    assert_eq!(told["judged"], false, "taken is not judged");
    assert_eq!(told["owner"]["pending"], false);
    assert_eq!(
        count(&client, EVENTS).await,
        0,
        "what is told costs nothing any more"
    );
}

#[tokio::test]
async fn an_owner_that_judges_a_letter_has_it_redriven_by_force_only() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let mut owner = Owner::start().await;
    hook(&client, "default", &owner.url).await;
    let replica = Replica::start(&db.url(), SHORT).await;
    let operator = Operator::of(&replica);
    let id = enqueue(&client, "").await;
    bury(&db.pool(), "true").await;
    owner
        .post()
        .await
        .answer(200, "{\"judged\": true, \"ticket\": 7}");
    let letter = owner_of(&operator, id, |owner| owner["told_at"].is_string()).await;
    assert_eq!(letter["judged"], true);
    let redrive = async |forced: bool| {
        let body = json!({"ids": [id.to_string()], "forced": forced}).to_string();
        let answers = operator
            .change("POST", "/v1/dead-letters/redrive", &body)
            .await;
        answers["dead_letters"][0].clone()
    };
    assert_eq!(redrive(false).await["refused"], "judged");
    assert!(redrive(true).await["redriven_as"].is_string());
}

#[tokio::test]
async fn a_replica_that_is_killed_while_it_tells_leaves_the_letter_to_another() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let mut owner = Owner::start().await;
    hook(&client, "default", &owner.url).await;
    let mut replica = Replica::start(&db.url(), SHORT).await;
    let id = enqueue(&client, "").await;
    bury(&db.pool(), "true").await;
    let unanswered = owner.post().await;
    replica.kill().await;
    let event = unanswered.event.clone();
    // The dead replica had it for a while, which is over.
    client
        .execute(
            "update fencepost.dead_letter_event set next_at = clock_timestamp()",
            &[],
        )
        .await
        .unwrap();
    let replica = Replica::start(&db.url(), SHORT).await;
    let again = owner.post().await;
    assert_eq!(again.event, event);
    again.answer(200, "not even JSON");
    let letter = owner_of(&Operator::of(&replica), id, |owner| {
        owner["told_at"].is_string()
    })
    .await;
    assert_eq!(letter["judged"], false);
    assert_eq!(count(&client, EVENTS).await, 0);
}

#[tokio::test]
async fn a_letter_that_cant_be_told_is_given_up_and_says_so() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let mut owner = Owner::start().await;
    hook(&client, "default", &owner.url).await;
    let id = enqueue(&client, "").await;
    bury(&db.pool(), "true").await;
    client
        .execute(
            "update fencepost.dead_letter_event set created_at = created_at - interval '2 days'",
            &[],
        )
        .await
        .unwrap();
    let replica = Replica::start(&db.url(), SHORT).await;
    owner.post().await.answer(503, "");
    let letter = owner_of(&Operator::of(&replica), id, |owner| {
        owner["error"].is_string()
    })
    .await;
    assert_eq!(letter["owner"]["error"], "answered with status 503");
    assert_eq!(count(&client, EVENTS).await, 0);
    assert_eq!(replica.said("is not told of its dead letter"), 1);
}

#[tokio::test]
async fn an_owner_that_hangs_holds_up_no_other() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let (mut hangs, mut lives) = (Owner::start().await, Owner::start().await);
    hook(&client, "hangs", &hangs.url).await;
    hook(&client, "lives", &lives.url).await;
    let many = "select count(*) from fencepost.enqueue_many(
        array['q'], array['t'], array_fill('1'::bytea, array[20]), namespace => array['hangs'])";
    client.query(many, &[]).await.unwrap();
    bury(&db.pool(), "true").await;
    let begun = Instant::now();
    let replica = Replica::start(&db.url(), SHORT).await;
    let held = [
        hangs.post().await,
        hangs.post().await,
        hangs.post().await,
        hangs.post().await,
    ];
    let id: i64 = client
        .query_one(
            "select task_id from fencepost.enqueue('q', 't', namespace => 'lives')",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    bury(&db.pool(), "true").await;
    let post = lives.post().await;
    assert_eq!(post.json()["task_id"], json!(id.to_string()));
    post.answer(200, "");
    owner_of(&Operator::of(&replica), id, |owner| {
        owner["told_at"].is_string()
    })
    .await;
    let a_fifth = hangs.posts.try_recv().is_ok();
    // A try is cut off after ten seconds, and then another takes its place.
    assert!(
        !a_fifth || begun.elapsed() >= Duration::from_secs(10),
        "no more than four at once of one namespace"
    );
    drop(held);
}

#[tokio::test]
async fn listeners_are_notified_where_that_is_switched_on_and_nobody_pays_elsewhere() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let config: tokio_postgres::Config = db.url().parse().unwrap();
    let (listener, mut connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    let (heard, mut notices) = mpsc::channel(100);
    let mut polled = JoinSet::new();
    polled.spawn(async move {
        let mut messages =
            futures_util::stream::poll_fn(|context| connection.poll_message(context));
        while let Some(Ok(message)) = futures_util::StreamExt::next(&mut messages).await {
            if let AsyncMessage::Notification(notice) = message {
                heard.send(notice.payload().to_owned()).await.ok();
            }
        }
    });
    listener
        .batch_execute("listen fencepost_dead_letters")
        .await
        .unwrap();
    let quiet = enqueue(&client, "namespace => 'quiet'").await;
    bury(&db.pool(), "true").await;
    assert_eq!(
        count(&client, EVENTS).await,
        0,
        "{quiet} has nobody to tell"
    );
    client
        .query(
            "select fencepost.set_dead_letter_hook('loud', notify => true)",
            &[],
        )
        .await
        .unwrap();
    let mut ids = Vec::new();
    for node in ["null", "'gpu'"] {
        ids.push(enqueue(&client, &format!("namespace => 'loud', node => {node}")).await);
    }
    bury(&db.pool(), "true").await;
    let _replica = Replica::start(&db.url(), SHORT).await;
    for (id, node) in ids.iter().zip([Value::Null, json!("gpu")]) {
        let payload = tokio::time::timeout(STEP, notices.recv())
            .await
            .unwrap()
            .unwrap();
        let said: Value = serde_json::from_str(&payload).unwrap();
        let expected = json!({
            "task_id": id.to_string(), "namespace": "loud", "task_queue": "q", "task_type": "t", "node": node
        });
        assert_eq!(said, expected);
    }
    assert_eq!(count(&client, EVENTS).await, 0);
}

#[tokio::test]
async fn a_webhook_is_set_at_every_door_and_its_secret_is_never_shown() {
    let side = Producers::start().await;
    let db = &side.db;
    let set = async |args: &[&str]| {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .args(["namespace", "set"])
            .args(args)
            .env("DATABASE_URL", db.url())
            .env("HOOK_SECRET", SECRET)
            .output()
            .await
            .unwrap();
        let text =
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains("horse"), "{text}");
        (output.status.code().unwrap(), text)
    };
    let url = "https://example.com/letters";
    let (code, text) = set(&[
        "n",
        "--dead-letter-webhook",
        url,
        "--secret-env",
        "HOOK_SECRET",
    ])
    .await;
    assert_eq!(code, 0, "{text}");
    let list = fencepost(&db.url(), &["namespace", "list", "--output", "json"]).await;
    let text = String::from_utf8(list.stdout).unwrap();
    assert!(text.contains(url) && !text.contains("horse"), "{text}");
    let (code, text) = set(&["n", "--secret-env", "NO_SUCH_VARIABLE"]).await;
    assert_eq!(code, 2, "{text}");

    let put = async |body: Value| {
        side.request(
            "PUT",
            "/v1/namespaces/m",
            "application/json",
            body.to_string(),
        )
        .await
    };
    for (body, field) in [
        (
            json!({"dead_letter_webhook": "ftp://example.com", "dead_letter_webhook_secret": SECRET}),
            "dead_letter_webhook",
        ),
        (
            json!({"dead_letter_webhook": "http://me:pass@example.com/", "dead_letter_webhook_secret": SECRET}),
            "dead_letter_webhook",
        ),
        (
            json!({"dead_letter_webhook": "http://example.com/#x", "dead_letter_webhook_secret": SECRET}),
            "dead_letter_webhook",
        ),
        (
            json!({"dead_letter_webhook": "http://example.com/"}),
            "dead_letter_webhook_secret",
        ),
        (
            json!({"dead_letter_webhook_secret": SECRET}),
            "dead_letter_webhook_secret",
        ),
        (
            json!({"dead_letter_webhook": url, "dead_letter_webhook_secret": "short"}),
            "dead_letter_webhook_secret",
        ),
    ] {
        let refused = (400, "FP-044".to_owned(), field.to_owned());
        assert_eq!(put(body.clone()).await.problem(), refused, "{body}");
    }
    let client = db.connect().await;
    // What is refused leaves nothing half done.
    let namespaces = "select count(*) from fencepost.namespace where name = 'm'";
    assert_eq!(count(&client, namespaces).await, 0);
    let body = json!({"dead_letter_webhook": url, "dead_letter_webhook_secret": SECRET, "dead_letter_notify": true});
    let answer = put(body).await;
    assert_eq!(answer.json()["dead_letter_webhook"], url);
    assert_eq!(answer.json()["dead_letter_notify"], true);
    assert!(!answer.text.contains("horse"));
    // Each may be changed alone, and an empty one ends it with what was yet to be told.
    enqueue(&client, "namespace => 'm'").await;
    bury(&side.state.pool, "true").await;
    assert_eq!(count(&client, EVENTS).await, 2);
    assert_eq!(
        put(json!({"dead_letter_webhook_secret": "0123456789abcdef"}))
            .await
            .status,
        200
    );
    let ended = put(json!({"dead_letter_webhook": ""})).await.json();
    assert_eq!(ended["dead_letter_webhook"], Value::Null);
    assert_eq!(count(&client, EVENTS).await, 1);
    let (code, text) = set(&["n", "--dead-letter-webhook", "none"]).await;
    assert_eq!(code, 0, "{text}");
    let left =
        "select count(*) from fencepost.dead_letter_hook where num_nonnulls(webhook, secret) > 0";
    assert_eq!(count(&client, left).await, 0);
}
