use std::process::Stdio;

use fencepost::embedded::{Embedded, Options};
use fencepost::store::{Settings, migrate};
use testcontainers::TestcontainersError;
use tokio::sync::OnceCell;

use super::container::Container;

/// Room for every test at once, each with two or three replicas.
const MAX_CONNECTIONS: u16 = 300;

/// One PostgreSQL server for this test process, started by the first test that asks.
///
/// `FENCEPOST_TEST_DATABASE_URL` names a running server (its user must be allowed to create databases);
/// else `FENCEPOST_TEST_CLUSTER` says `container` or `local`; else it is a throwaway container where Docker
/// answers, and a private server from local binaries where it does not.
#[derive(Debug)]
pub struct Cluster {
    url: String,
    template: String,
    _server: Server,
}

/// What keeps the server up. It ends with this process, whatever ends that: both are watched over a pipe.
#[derive(Debug)]
enum Server {
    Given,
    Container { _held: Box<Container> },
    Local { _held: Embedded },
}

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();

impl Cluster {
    pub async fn get() -> &'static Self {
        CLUSTER.get_or_init(Self::start).await
    }

    /// The template that every test's database is cloned from.
    pub fn template(&self) -> &str {
        &self.template
    }

    /// The URL of one database on the server.
    pub fn url_of(&self, database: &str) -> String {
        let (base, query) = self
            .url
            .split_once('?')
            .map_or((self.url.as_str(), None), |(b, q)| (b, Some(q)));
        let scheme_end = base.find("://").unwrap() + 3;
        let host_end = base[scheme_end..]
            .find('/')
            .map_or(base.len(), |at| scheme_end + at);
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        format!("{}/{database}{query}", &base[..host_end])
    }

    /// A connection as the server's owner.
    pub async fn admin(&self) -> tokio_postgres::Client {
        connect(&self.url).await
    }

    async fn start() -> Self {
        let (url, server) = start_server().await;
        let mut cluster = Self {
            url,
            template: String::new(),
            _server: server,
        };
        cluster.template = cluster.make_template().await;
        cluster
    }

    /// Makes the migrated template once for this set of migrations, whoever else shares the server. It has
    /// its name only when it is whole.
    async fn make_template(&self) -> String {
        let template = format!("fencepost_template_{:016x}", fingerprint(&migrate::sql()));
        let making = format!("{template}_making");
        let admin = self.admin().await;
        admin
            .batch_execute("select pg_advisory_lock(hashtext('fencepost template'))")
            .await
            .unwrap();
        let made = admin
            .query_opt("select from pg_database where datname = $1", &[&template])
            .await
            .unwrap();
        if made.is_none() {
            for statement in [
                format!("drop database if exists {making}"),
                format!("create database {making} template template0 encoding 'UTF8'"),
            ] {
                admin.batch_execute(&statement).await.unwrap();
            }
            migrate::run(&Settings::new(self.url_of(&making)))
                .await
                .unwrap();
            // Nobody may be connected when it is renamed, and the server takes a moment to see us leave.
            let rename = format!("alter database {making} rename to {template}");
            super::eventually(std::time::Duration::from_secs(10), async || {
                admin.batch_execute(&rename).await.ok()
            })
            .await;
        }
        template
    }
}

async fn start_server() -> (String, Server) {
    if let Ok(url) = std::env::var("FENCEPOST_TEST_DATABASE_URL") {
        return (url, Server::Given);
    }
    match std::env::var("FENCEPOST_TEST_CLUSTER").as_deref() {
        Ok("container") => container().await.unwrap(),
        Ok("local") => local().await,
        Ok(other) => panic!("FENCEPOST_TEST_CLUSTER is {other:?}: expected container or local"),
        Err(_) if docker_answers() => match container().await {
            Ok(started) => started,
            Err(error) => {
                eprintln!("no container, so a local server: {error}");
                local().await
            }
        },
        Err(_) => local().await,
    }
}

async fn container() -> Result<(String, Server), TestcontainersError> {
    let container = Container::start(MAX_CONNECTIONS).await?;
    Ok((
        container.url().to_owned(),
        Server::Container {
            _held: Box::new(container),
        },
    ))
}

async fn local() -> (String, Server) {
    let options = Options {
        durable: false,
        max_connections: MAX_CONNECTIONS,
        ..Options::default()
    };
    let server = Embedded::start(options).await.unwrap();
    (server.url(), Server::Local { _held: server })
}

fn docker_answers() -> bool {
    std::process::Command::new("docker")
        .args(["version", "--format", "{{.Server.Version}}"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The same text has the same number in every process (FNV-1a).
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub(super) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}
