//! The private server: it comes up, survives a crash, and never outlives its owner.

use std::time::Duration;

use fencepost::embedded::{Embedded, Options};

use crate::support::eventually;

fn throwaway() -> Options {
    Options {
        durable: false,
        max_connections: 20,
        ..Options::default()
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn starts_with_its_settings_and_leaves_nothing_behind() {
    let server = Embedded::start(Options {
        settings: vec![("work_mem".into(), "5MB".into())],
        ..throwaway()
    })
    .await
    .unwrap();
    let client = connect(&server.url()).await;
    for (name, value) in [
        ("server_encoding", "UTF8"),
        ("fsync", "off"),
        ("work_mem", "5MB"),
        ("max_connections", "20"),
    ] {
        let row = client
            .query_one("select current_setting($1)", &[&name])
            .await
            .unwrap();
        assert_eq!(row.get::<_, String>(0), value, "{name}");
    }
    let directory = server.directory().to_owned();
    let url = server.url();
    drop(server);
    assert!(!directory.exists());
    assert!(
        tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn keeps_committed_rows_over_a_crash_and_over_a_stop() {
    let kept = tempfile::tempdir().unwrap();
    std::fs::set_permissions(
        kept.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let options = Options {
        directory: Some(kept.path().join("server")),
        ..throwaway()
    };

    let mut server = Embedded::start(options.clone()).await.unwrap();
    let url = server.url();
    connect(&url)
        .await
        .batch_execute("create table kept (n int); insert into kept values (1)")
        .await
        .unwrap();
    server.kill_and_restart().await.unwrap();
    assert_eq!(server.url(), url);
    connect(&url)
        .await
        .batch_execute("insert into kept values (2)")
        .await
        .unwrap();
    server.stop().await.unwrap();

    let server = Embedded::start(options).await.unwrap();
    let row = connect(&server.url())
        .await
        .query_one("select count(*) from kept", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 2);
}

/// Run by the test below in a process of its own: starts a server, says where, and waits to be killed.
#[tokio::test]
#[ignore = "the victim of a_killed_owner_takes_its_server_along"]
async fn victim() {
    let server = Embedded::start(throwaway()).await.unwrap();
    println!("\nup {} {}", server.url(), server.directory().display());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_owner_takes_its_server_along() {
    use tokio::io::{AsyncBufReadExt, BufReader};

    let mut owner = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded::victim", "--ignored", "--nocapture"])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let (url, directory) = loop {
        let line = lines
            .next_line()
            .await
            .unwrap()
            .expect("the victim names its server");
        if let Some((url, directory)) = line
            .strip_prefix("up ")
            .and_then(|rest| rest.split_once(' '))
        {
            break (url.to_owned(), std::path::PathBuf::from(directory));
        }
    };
    drop(connect(&url).await);
    owner.kill().await.unwrap();
    eventually(Duration::from_secs(15), async || {
        let gone = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .is_err();
        (gone && !directory.exists()).then_some(())
    })
    .await;
}
