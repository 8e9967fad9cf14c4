//! The pool's rules, the migrations and how failures are told apart.

use std::time::Duration;

use fencepost::store::{Errand, Error, Pool, Settings, migrate};

use crate::support::{TestDb, eventually};

const DEADLINE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn migrations_that_meet_wait_for_each_other_and_apply_once() {
    let db = TestDb::empty().await;
    let pending = migrate::check(&db.settings()).await.unwrap();
    assert!(pending.len() >= 2, "{pending:?}");
    let settings = db.settings();
    let (first, second) = tokio::join!(migrate::run(&settings), migrate::run(&settings));
    first.unwrap();
    second.unwrap();
    assert_eq!(migrate::check(&settings).await.unwrap(), []);
    let rows: i64 = db
        .connect()
        .await
        .query_one(
            "select count(*) from fencepost.migration where success",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(rows, i64::try_from(pending.len()).unwrap());
}

#[tokio::test]
async fn the_script_does_what_migrate_does() {
    let by_script = TestDb::empty().await;
    // Lines for psql itself are not for the server.
    let script: String = migrate::sql()
        .lines()
        .filter(|line| !line.starts_with('\\'))
        .fold(String::new(), |script, line| script + line + "\n");
    by_script
        .connect()
        .await
        .batch_execute(&script)
        .await
        .unwrap();
    assert_eq!(migrate::check(&by_script.settings()).await.unwrap(), []);
    migrate::run(&by_script.settings()).await.unwrap();

    let by_migrate = TestDb::new().await;
    let columns = "
        select string_agg(table_name || '.' || column_name || ' ' || data_type, ',' order by 1)
        from (
            select table_name::text, column_name::text, data_type::text
            from information_schema.columns where table_schema = 'fencepost' order by 1, 2
        ) as one";
    let columns_of = async |db: &TestDb| -> String {
        db.connect()
            .await
            .query_one(columns, &[])
            .await
            .unwrap()
            .get(0)
    };
    assert_eq!(columns_of(&by_script).await, columns_of(&by_migrate).await);
}

#[tokio::test]
async fn a_changed_migration_and_a_wrong_encoding_are_refused() {
    let db = TestDb::new().await;
    db.connect()
        .await
        .batch_execute("update fencepost.migration set checksum = '\\x00' where version = 2")
        .await
        .unwrap();
    for refused in [
        migrate::run(&db.settings()).await,
        migrate::check(&db.settings()).await.map(drop),
    ] {
        assert!(
            matches!(refused, Err(migrate::Error::Modified { version: 2 })),
            "{refused:?}"
        );
    }
    let latin = TestDb::with("template template0 encoding 'LATIN1' locale 'C'").await;
    let refused = migrate::run(&latin.settings()).await;
    assert!(
        matches!(&refused, Err(migrate::Error::Encoding { encoding }) if encoding == "LATIN1"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn sessions_have_their_settings_and_can_do_without() {
    let db = TestDb::new().await;
    let setting = async |pool: &Pool, name: &'static str| -> String {
        pool.run(DEADLINE, move |client| {
            Box::pin(async move {
                let statement = client.prepare_cached("select current_setting($1)").await?;
                Ok(client.query_one(&statement, &[&name]).await?.get(0))
            })
        })
        .await
        .unwrap()
    };
    // For the applications beside it.
    let stricter = "do $$ begin
            execute format('alter database %I set default_transaction_isolation = ''repeatable read''', current_database());
        end $$";
    db.connect().await.batch_execute(stricter).await.unwrap();
    let pool = db.pool();
    assert_eq!(
        setting(&pool, "transaction_isolation").await,
        "read committed"
    );
    assert_eq!(setting(&pool, "enable_seqscan").await, "off");
    assert_eq!(setting(&pool, "statement_timeout").await, "15s");
    assert_eq!(setting(&pool, "lock_timeout").await, "2s");
    assert_eq!(setting(&pool, "application_name").await, "fencepost");
    let bare = Pool::new(&Settings {
        session_settings: false,
        ..db.settings()
    })
    .unwrap();
    assert_eq!(setting(&bare, "enable_seqscan").await, "on");
}

#[tokio::test]
async fn late_work_costs_its_connection_and_nobody_elses() {
    let db = TestDb::new().await;
    let pool = Pool::new(&Settings {
        pool_size: 1,
        ..db.settings()
    })
    .unwrap();
    let backend = async || -> i32 {
        pool.run(DEADLINE, |client| {
            Box::pin(async {
                Ok(client
                    .query_one("select pg_backend_pid()", &[])
                    .await?
                    .get(0))
            })
        })
        .await
        .unwrap()
    };
    let first = backend().await;
    assert_eq!(backend().await, first, "a good connection is used again");
    let late = pool
        .run(Duration::from_millis(50), |client| {
            Box::pin(async { Ok(client.batch_execute("begin; select pg_sleep(5)").await?) })
        })
        .await;
    assert!(matches!(late, Err(Error::Unavailable(_))), "{late:?}");
    assert_ne!(backend().await, first);
}

#[tokio::test]
async fn claims_and_ends_have_connections_of_their_own() {
    let db = TestDb::new().await;
    let pool = Pool::new(&Settings {
        pool_size: 1,
        ..db.settings()
    })
    .unwrap();
    let backend = async |errand| -> i32 {
        pool.run_for(errand, DEADLINE, |client| {
            Box::pin(async {
                let row = client.query_one("select pg_backend_pid()", &[]).await?;
                Ok(row.get(0))
            })
        })
        .await
        .unwrap()
    };
    let all_others_are_taken = pool.get().await.unwrap();
    let (claims, ends) = (backend(Errand::Claim).await, backend(Errand::End).await);
    assert_ne!(claims, ends);
    drop(all_others_are_taken);
    let other = backend(Errand::Other).await;
    assert!(other != claims && other != ends);
    let again = (backend(Errand::Claim).await, backend(Errand::End).await);
    assert_eq!(again, (claims, ends), "with what they have planned");
    pool.close().await;
    for errand in [Errand::Claim, Errand::End, Errand::Other] {
        let late = pool.run_for(errand, DEADLINE, |client| {
            Box::pin(async { Ok(client.check_connection().await?) })
        });
        let late = late.await;
        assert!(late.is_err(), "{errand:?} after the end");
    }
}

#[tokio::test]
async fn a_caller_who_goes_away_does_not_stop_the_work() {
    let db = TestDb::new().await;
    let pool = db.pool();
    let admin = db.connect().await;
    admin
        .batch_execute("create table kept (n int)")
        .await
        .unwrap();
    let work = pool.run(DEADLINE, |client| {
        Box::pin(async {
            let transaction = client.transaction().await?;
            transaction
                .batch_execute("insert into kept values (1); select pg_sleep(0.2)")
                .await?;
            transaction.commit().await?;
            Ok(())
        })
    });
    assert!(
        tokio::time::timeout(Duration::from_millis(100), work)
            .await
            .is_err()
    );
    eventually(DEADLINE, async || {
        let rows = admin.query("select from kept", &[]).await.unwrap().len();
        (rows == 1).then_some(())
    })
    .await;
    pool.close().await;
    assert!(matches!(pool.get().await, Err(Error::Unavailable(_))));
}

#[tokio::test]
async fn failures_are_told_apart_by_their_sqlstate() {
    let db = TestDb::empty().await;
    let pool = Pool::new(&Settings {
        statement_timeout: Duration::from_millis(100),
        ..db.settings()
    })
    .unwrap();
    let answer = async |statement: String| {
        pool.run(DEADLINE, move |client| {
            Box::pin(async move { Ok(client.batch_execute(&statement).await?) })
        })
        .await
        .unwrap_err()
    };
    let raise = |using: &str| {
        format!("do $$ begin raise exception using message = 'words', {using}; end $$")
    };
    let refused = answer(raise(
        "errcode = 'FP001', detail = 'invalid_name', column = 'namespace'",
    ))
    .await;
    let Error::Refused(refusal) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(
        (refusal.code.as_str(), refusal.slug.as_str()),
        ("FP001", "invalid_name")
    );
    assert_eq!(
        (refusal.field.as_deref(), refusal.message.as_str()),
        (Some("namespace"), "words")
    );

    for code in ["40001", "40P01", "55P03"] {
        let error = answer(raise(&format!("errcode = '{code}'"))).await;
        assert!(
            matches!(error, Error::Conflict(_)) && error.is_transient(),
            "{error:?}"
        );
    }
    for code in ["08006", "53300", "57P01", "57P03", "25006"] {
        let error = answer(raise(&format!("errcode = '{code}'"))).await;
        assert!(
            matches!(error, Error::Unavailable(_)) && error.is_transient(),
            "{error:?}"
        );
    }
    let error = answer("select pg_sleep(5)".into()).await;
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let error = answer("select from fencepost.live".into()).await;
    assert!(
        matches!(error, Error::NotMigrated(_)) && !error.is_transient(),
        "{error:?}"
    );
    let error = answer("select 1 / 0".into()).await;
    assert!(
        matches!(error, Error::Internal(_)) && !error.is_transient(),
        "{error:?}"
    );
    let error = answer("select pg_terminate_backend(pg_backend_pid())".into()).await;
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert_eq!(pool.usage().open, 0, "a broken connection is not kept");

    let nobody = Pool::new(&Settings::new("postgres://postgres@127.0.0.1:1/postgres")).unwrap();
    let error = nobody.get().await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn a_listener_hears_of_what_commits() {
    let db = TestDb::new().await;
    let (client, mut connection) = db.pool().connect_listener().await.unwrap();
    let (heard, mut hears) = tokio::sync::mpsc::channel(1);
    let polling = tokio::spawn(async move {
        while let Some(message) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let Ok(tokio_postgres::AsyncMessage::Notification(note)) = message {
                heard.send(note.payload().to_owned()).await.unwrap();
            }
        }
    });
    client.batch_execute("listen wake").await.unwrap();
    db.connect()
        .await
        .batch_execute("notify wake, '7'")
        .await
        .unwrap();
    let note = tokio::time::timeout(DEADLINE, hears.recv()).await.unwrap();
    assert_eq!(note.as_deref(), Some("7"));
    drop(client);
    polling.await.unwrap();
}
