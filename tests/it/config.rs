//! The configuration: who wins, and that every mistake is told at once, with where it stands.

use std::time::Duration;

use fencepost::config::{Config, ConfigFile, Errors, Flag, Sources};
use secrecy::ExposeSecret;

const URL: &str = "postgres://app:hunter2@db.example/app";

struct Given {
    _directory: tempfile::TempDir,
    path: String,
    sources: Sources,
}

fn given(toml: &str, environment: &[(&str, &str)], flags: &[Flag]) -> Given {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fencepost.toml");
    std::fs::write(&path, toml).unwrap();
    let environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Given {
        path: path.display().to_string(),
        sources: Sources {
            file: ConfigFile::Required(path),
            environment: environment.collect(),
            flags: flags.to_vec(),
        },
        _directory: directory,
    }
}

fn flag(flag: &'static str, key: &'static str, value: &str) -> Flag {
    Flag {
        flag,
        key,
        value: value.to_owned(),
    }
}

/// (origin, key) of every fault, and the whole text.
fn faults(errors: &Errors) -> (Vec<(&str, &str)>, String) {
    let places = errors
        .0
        .iter()
        .map(|fault| (fault.origin.as_str(), fault.key.as_str()));
    (places.collect(), errors.to_string())
}

#[test]
fn later_sources_win_and_say_so() {
    let given = given(
        "[server]\ngrpc = '127.0.0.1:1'\nhttp = '127.0.0.1:2'\n[workers]\nmax_frame = '2MiB'\n\
         [wake]\nlisten = false\npoll = '250ms'\n[tasks]\nmax_attempts = 3\nbackoff_multiplier = 1.5\n\
         run_timeout = '0s'\n[database]\nurl = 'postgres://file/app'",
        &[
            ("FENCEPOST_SERVER__GRPC", "127.0.0.1:3"),
            ("FENCEPOST_SERVER__NAME", "007"),
            ("FENCEPOST_PG_BIN", "/not/a/setting"),
            ("DATABASE_URL", URL),
        ],
        &[flag("--http", "server.http", "0.0.0.0:4")],
    );
    let (config, entries) = Config::explain(&given.sources).unwrap();
    assert_eq!(config.server.grpc.port(), 3);
    assert_eq!(config.server.http.to_string(), "0.0.0.0:4");
    assert_eq!(config.server.name, "007");
    assert_eq!(config.workers.max_frame, 2 << 20);
    assert_eq!(config.workers.silence_window, Duration::from_secs(30));
    assert!(!config.wake.listen);
    assert_eq!(config.wake.poll, Duration::from_millis(250));
    assert_eq!(
        (config.tasks.max_attempts, config.tasks.run_timeout),
        (3, None)
    );
    assert!((config.tasks.backoff_multiplier - 1.5).abs() < f64::EPSILON);
    assert_eq!(config.database.url.expose_secret(), URL);

    let shown = |key: &str| {
        let entry = entries.iter().find(|entry| entry.key == key).unwrap();
        (entry.value.as_str(), entry.origin.as_str())
    };
    assert_eq!(
        shown("server.grpc"),
        ("127.0.0.1:3", "FENCEPOST_SERVER__GRPC")
    );
    assert_eq!(shown("server.http"), ("0.0.0.0:4", "--http"));
    assert_eq!(shown("workers.max_frame"), ("2MiB", given.path.as_str()));
    assert_eq!(shown("workers.silence_window"), ("30s", "defaults"));
    assert_eq!(shown("database.url"), ("(secret)", "DATABASE_URL"));
}

#[test]
fn our_own_variable_wins_over_the_conventional_one() {
    for order in [[0, 1], [1, 0]] {
        let both = [
            ("DATABASE_URL", "postgres://other/app"),
            ("FENCEPOST_DATABASE__URL", URL),
        ];
        let given = given("", &order.map(|n: usize| both[n]), &[]);
        let config = Config::load(&given.sources).unwrap();
        assert_eq!(config.database.url.expose_secret(), URL);
    }
}

#[test]
fn all_errors_are_told_at_once_with_their_origins() {
    let given = given(
        "[workers]\nsilence_window = '0s'\naccept_timeout = 10\nmax_frame = '1MB'\n\
         [replica]\nbeat = '10s'\n[sweep]\nbatch = [1]\n[settle]\nlow_water = 30000\n\
         [serve]\nport = 1",
        &[
            ("FENCEPOST_TASKS__MAX_ATTEMPTS", "0"),
            ("FENCEPOST_DATABASE__URL", "mysql://app:hunter2@db/app"),
            ("FENCEPOST_SERVER__GRCP", "127.0.0.1:1"),
            ("FENCEPOST_WAKE_POLL", "2s"),
        ],
        &[flag("--http", "server.http", "localhost")],
    );
    let errors = Config::load(&given.sources).unwrap_err();
    let (mut places, text) = faults(&errors);
    places.sort_unstable();
    let file = given.path.as_str();
    let mut expected = vec![
        (file, "workers.silence_window"),
        (file, "workers.accept_timeout"),
        (file, "workers.max_frame"),
        (file, "replica.beat"),
        (file, "sweep.batch"),
        (file, "settle.low_water"),
        (file, "serve"),
        ("FENCEPOST_TASKS__MAX_ATTEMPTS", "tasks.max_attempts"),
        ("FENCEPOST_DATABASE__URL", "database.url"),
        ("FENCEPOST_SERVER__GRCP", "server.grcp"),
        ("FENCEPOST_WAKE_POLL", "wake.poll"),
        ("--http", "server.http"),
    ];
    expected.sort_unstable();
    assert_eq!(places, expected, "{text}");
    for words in [
        "is \"0s\": it must be a duration above zero",
        "is \"10\": it must be a duration",
        "such as 512KiB or 1MiB",
        "less than half of replica.dead_after",
        "FENCEPOST_WAKE__POLL, with two underscores",
        "[server] has grpc, http, name, show_payloads",
        "the sections are database, dispatch, limits,",
        "must be a whole number between 1 and 1000",
    ] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn zero_is_refused_where_it_makes_no_sense() {
    let refused = [
        "database.pool_size",
        "database.acquire_timeout",
        "database.statement_timeout",
        "workers.silence_window",
        "workers.accept_timeout",
        "workers.max_frame",
        "replica.dead_after",
        "replica.beat",
        "tasks.max_attempts",
        "tasks.backoff_base",
        "tasks.backoff_multiplier",
        "tasks.backoff_max",
        "limits.payload",
        "limits.result",
        "wake.poll",
        "sweep.batch",
        "settle.batch",
        "settle.high_water",
        "settle.low_water",
        "retention.interval",
        "retention.history",
        "retention.results",
        "retention.dead_letters",
        "retention.workflows",
    ];
    for key in refused {
        let given = given("", &[("DATABASE_URL", URL)], &[flag("--set", key, "0")]);
        let errors = Config::load(&given.sources).map(drop).unwrap_err();
        assert!(
            faults(&errors).0.contains(&("--set", key)),
            "{key}: {errors}"
        );
    }
    for key in [
        "tasks.run_timeout",
        "tasks.max_losses",
        "tasks.cancel_grace",
        "workers.reconnect_grace",
        "retention.dispatch_keys",
    ] {
        let given = given("", &[("DATABASE_URL", URL)], &[flag("--set", key, "0")]);
        Config::load(&given.sources).unwrap();
    }
}

#[test]
fn a_level_that_is_none_and_two_doors_at_one_address_are_refused() {
    let load = |key: &'static str, value: &'static str| {
        let given = given("", &[("DATABASE_URL", URL)], &[flag("--set", key, value)]);
        Config::load(&given.sources).map(drop)
    };
    for level in [
        "debug",
        "off",
        "WARN",
        "info,fencepost=debug",
        "fencepost::store=trace",
    ] {
        load("log.level", level).unwrap();
    }
    for level in ["loud", "", "=,,;", "info,loud", "fencepost=loud", "info,"] {
        let errors = load("log.level", level).unwrap_err();
        assert_eq!(faults(&errors).0, [("--set", "log.level")], "{level:?}");
    }
    load("server.http", "127.0.0.1:7435").unwrap();
    let errors = load("server.http", "127.0.0.1:7433").unwrap_err();
    assert_eq!(faults(&errors).0, [("--set", "server.http")]);
}

#[test]
fn a_file_that_is_named_must_be_there_and_be_toml() {
    let mut missing = given("", &[("DATABASE_URL", URL)], &[]);
    missing.sources.file = ConfigFile::Required("/nowhere/fencepost.toml".into());
    let errors = Config::load(&missing.sources).map(drop).unwrap_err();
    assert_eq!(faults(&errors).0, [("/nowhere/fencepost.toml", "")]);
    missing.sources.file = ConfigFile::IfPresent("/nowhere/fencepost.toml".into());
    Config::load(&missing.sources).unwrap();

    let torn = given("[server\n", &[("FENCEPOST_WAKE__POLL", "0")], &[]);
    let errors = Config::load(&torn.sources).map(drop).unwrap_err();
    let places = faults(&errors).0;
    for place in [
        (torn.path.as_str(), ""),
        ("FENCEPOST_WAKE__POLL", "wake.poll"),
        ("defaults", "database.url"),
    ] {
        assert!(
            places.contains(&place),
            "{place:?} is missing in {places:?}"
        );
    }
}

#[test]
fn ages_are_durations_or_never_and_none_outlasts_what_it_hangs_on() {
    let load = |toml: &str| {
        let given = given(toml, &[("DATABASE_URL", URL)], &[]);
        Config::explain(&given.sources)
    };
    let day = Duration::from_hours(24);
    let (config, _) = load("").unwrap();
    assert_eq!(config.retention.history, Some(day * 14));
    assert_eq!(config.retention.dead_letters, Some(day * 90));
    assert_eq!(config.retention.workflows, Some(day * 14));
    assert_eq!(
        (config.retention.results, config.retention.dispatch_keys),
        (None, None)
    );
    let (config, entries) = load(
        "[retention]\nhistory = 'never'\nresults = '2d'\ndead_letters = '365d'\ndispatch_keys = '40d'",
    )
    .unwrap();
    assert_eq!(config.retention.history, None);
    assert_eq!(config.retention.results, Some(day * 2));
    assert_eq!(config.retention.dispatch_keys, Some(day * 40));
    let history = entries
        .iter()
        .find(|entry| entry.key == "retention.history");
    assert_eq!(history.unwrap().value, "never");

    let errors = load(
        "[retention]\nhistory = '3d'\nresults = '4d'\ndispatch_keys = '73h'\ndead_letters = 'soon'",
    )
    .unwrap_err();
    let (mut places, text) = faults(&errors);
    places.sort_unstable();
    let keys: Vec<&str> = places.iter().map(|(_, key)| *key).collect();
    let expected =
        ["dead_letters", "dispatch_keys", "results"].map(|key| format!("retention.{key}"));
    assert_eq!(keys, expected, "{text}");
    assert!(
        text.contains("must not be longer than retention.history"),
        "{text}"
    );
    assert!(
        text.contains("must be \"never\", or a duration from 1h"),
        "{text}"
    );
}

/// Settings whose default is no value that could stand in a file.
const NO_DEFAULT: [&str; 6] = [
    "database.url",
    "database.tls_root",
    "limits.payload",
    "limits.result",
    "retention.dispatch_keys",
    "server.name",
];

/// The example with its settings in effect.
fn example() -> String {
    let text = include_str!("../../fencepost.example.toml");
    let is_setting = |line: &str| {
        let key = line.split(" = ").next().unwrap_or_default();
        line.contains(" = ") && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if is_setting(setting) => setting,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_has_every_setting_with_its_default() {
    let defaults = given("", &[("DATABASE_URL", URL)], &[]);
    let (_, defaults) = Config::explain(&defaults.sources).unwrap();
    let all = given(&example(), &[], &[]);
    let (_, all) = Config::explain(&all.sources).unwrap();
    assert_eq!(all.len(), defaults.len());
    for (given, default) in all.iter().zip(&defaults) {
        assert_eq!(given.key, default.key);
        assert!(
            given.origin.contains("fencepost.toml"),
            "{} is not in the example",
            given.key
        );
        if !NO_DEFAULT.contains(&given.key) {
            assert_eq!(given.value, default.value, "{}", given.key);
        }
    }
}

#[tokio::test]
async fn the_command_shows_what_is_in_effect_and_names_every_mistake() {
    let run = |args: Vec<&'static str>, environment: Vec<(&'static str, &'static str)>| async move {
        let empty = tempfile::tempdir().unwrap();
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .args(args)
            .env_remove("DATABASE_URL")
            .envs(environment)
            .current_dir(empty.path())
            .output()
            .await
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let poll = ("FENCEPOST_WAKE__POLL", "250ms");
    let sound = vec![("DATABASE_URL", URL), poll];
    let (code, shown, said) = run(vec!["config", "show", "--output", "json"], sound.clone()).await;
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let setting = |key: &str| {
        let all = shown.as_array().unwrap();
        all.iter()
            .find(|entry| entry["key"] == key)
            .unwrap()
            .clone()
    };
    assert_eq!(setting("wake.poll")["value"], "250ms");
    assert_eq!(setting("wake.poll")["origin"], "FENCEPOST_WAKE__POLL");
    assert_eq!(setting("retention.dead_letters")["value"], "90days");
    assert_eq!(setting("replica.beat")["origin"], "defaults");
    assert!(!shown.to_string().contains("hunter2"));
    let (code, shown, said) = run(vec!["config", "check"], sound).await;
    assert_eq!((code, shown.as_str(), said.as_str()), (Some(0), "", ""));
    let wrong = vec![
        ("FENCEPOST_WAKE__POLL", "soon"),
        ("FENCEPOST_WAKE__PULL", "1s"),
    ];
    let (code, _, said) = run(vec!["config", "check"], wrong).await;
    assert_eq!(code, Some(2));
    for mistake in [
        "database.url",
        "FENCEPOST_WAKE__POLL",
        "FENCEPOST_WAKE__PULL",
    ] {
        assert!(said.contains(mistake), "{mistake} is missing in {said}");
    }
}
