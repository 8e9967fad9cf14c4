use std::collections::HashMap;

use proptest::collection::{hash_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::super::worker as proto;
use super::*;
use proto::dispatcher_frame::Frame as Down;
use proto::result::Outcome;
use proto::worker_frame::Frame as Up;

fn text() -> impl Strategy<Value = String> {
    // Quotes, escapes, control characters and everything beyond ASCII.
    prop_oneof!["[a-z0-9.]{0,12}", any::<String>()]
}

fn token() -> impl Strategy<Value = Bytes> {
    text().prop_map(Bytes::from)
}

fn tokens() -> impl Strategy<Value = Vec<Bytes>> {
    vec(token(), 0..4)
}

fn body() -> impl Strategy<Value = (Bytes, String)> {
    let json = prop_oneof![
        Just("null".to_owned()),
        Just("1e400".to_owned()),
        Just("-0.0".to_owned()),
        Just("123456789012345678901234567890.10".to_owned()),
        Just("{\"a\": [1, 2.50, \"\\ud83d\"], \"a\": {}}".to_owned()),
        Just(" 1 ".to_owned()),
        Just("no JSON".to_owned()),
        Just("[".repeat(5000) + &"]".repeat(5000)),
        text().prop_map(|text| serde_json::json!({ "text": text }).to_string()),
    ];
    prop_oneof![
        (json, Just(JSON.to_owned())).prop_map(|(json, kind)| (Bytes::from(json), kind)),
        (vec(any::<u8>(), 0..100), text()).prop_map(|(bytes, kind)| (Bytes::from(bytes), kind)),
        (vec(any::<u8>(), 0..9), Just(JSON.to_owned()))
            .prop_map(|(bytes, kind)| (Bytes::from(bytes), kind)),
    ]
}

prop_compose! {
    fn register()(
        protocol: u32, identity in text(), namespaces in vec(text(), 0..3), task_queue in text(),
        task_types in vec(text(), 0..3), node in text(), slots: u32, max_frame_bytes: u64,
        build_id in text(), instance in text(), resume in vec((any::<i64>(), token()), 0..3),
    ) -> proto::Register {
        let resume = resume.into_iter().map(|(task_id, token)| proto::Held { task_id, token }).collect();
        proto::Register {
            protocol, identity, namespaces, task_queue, task_types, node, slots, max_frame_bytes,
            build_id, capabilities: vec!["c".into()], instance, resume,
        }
    }
}

fn result() -> impl Strategy<Value = proto::Result> {
    let outcome = prop_oneof![
        body().prop_map(
            |(payload, content_type)| Outcome::Succeeded(proto::Succeeded {
                payload,
                content_type
            })
        ),
        (0..4, text(), text(), option::of(any::<u64>())).prop_map(
            |(kind, class, message, retry_after_ms)| Outcome::Failed(proto::Failed {
                kind,
                class,
                message,
                retry_after_ms
            })
        ),
        any::<u64>().prop_map(|after_ms| Outcome::Snoozed(proto::Snoozed { after_ms })),
    ];
    (token(), option::of(outcome)).prop_map(|(token, outcome)| proto::Result { token, outcome })
}

fn up() -> impl Strategy<Value = Up> {
    prop_oneof![
        register().prop_map(Up::Register),
        tokens().prop_map(|tokens| Up::Accepted(proto::Accepted { tokens })),
        (tokens(), 0..4)
            .prop_map(|(tokens, reason)| Up::Refused(proto::Refused { tokens, reason })),
        vec(result(), 0..4).prop_map(|results| Up::Results(proto::Results { results })),
        (token(), text(), option::of(any::<u32>())).prop_map(
            |(token, text, percent)| Up::Progress(proto::Progress {
                token,
                text,
                percent
            })
        ),
        any::<u64>().prop_map(|sequence| Up::Ping(proto::Ping { sequence })),
        any::<u64>().prop_map(|sequence| Up::Pong(proto::Pong { sequence })),
        Just(Up::Drain(proto::Drain {})),
    ]
}

prop_compose! {
    fn task()(
        token in token(), task_id: i64, names in [text(), text(), text(), text()], body in body(),
        attempt: u32, max_attempts: u32, labels in hash_map(text(), text(), 0..4), run_timeout_ms: u64,
        more in [text(), text(), text(), text()], ordinal in option::of(any::<u32>()), fence: i64,
    ) -> proto::Task {
        let [namespace, task_queue, task_type, node] = names;
        let [workflow_id, run_id, idempotency_key, trace_context] = more;
        let (payload, content_type) = body;
        proto::Task {
            token, task_id, namespace, task_queue, task_type, node, payload, content_type, attempt,
            max_attempts, labels, run_timeout_ms, heartbeat_timeout_ms: 0, workflow_id, run_id, ordinal,
            idempotency_key, fence, trace_context,
        }
    }
}

fn down() -> impl Strategy<Value = Down> {
    let welcome = (text(), any::<u32>(), any::<u64>(), tokens(), tokens()).prop_map(
        |(worker_id, slots, ping_interval_ms, resumed, abandoned)| {
            Down::Welcome(proto::Welcome {
                worker_id,
                session_id: "7".into(),
                replica: "1".into(),
                slots,
                ping_interval_ms,
                silence_window_ms: u64::MAX,
                max_frame_bytes: 1 << 53,
                resumed,
                abandoned,
                max_result_bytes: 1,
            })
        },
    );
    let ack = (token(), 0..3).prop_map(|(token, verdict)| proto::ResultAck { token, verdict });
    prop_oneof![
        welcome,
        vec(task(), 0..4).prop_map(|tasks| Down::Tasks(proto::Tasks { tasks })),
        vec(ack, 0..4).prop_map(|acks| Down::Acks(proto::ResultAcks { acks })),
        (tokens(), text())
            .prop_map(|(tokens, reason)| Down::Cancel(proto::Cancel { tokens, reason })),
        any::<u64>().prop_map(|sequence| Down::Ping(proto::Ping { sequence })),
        any::<u64>().prop_map(|sequence| Down::Pong(proto::Pong { sequence })),
        (any::<u64>(), text())
            .prop_map(|(within_ms, reason)| Down::GoAway(proto::GoAway { within_ms, reason })),
    ]
}

proptest! {
    #[test]
    fn what_a_worker_says_survives(frame in option::of(up())) {
        let frame = WorkerFrame { frame };
        prop_assert_eq!(read_worker_frame(&write_worker_frame(frame.clone())), Ok(frame));
    }

    #[test]
    fn what_a_dispatcher_says_survives(frame in option::of(down())) {
        let frame = DispatcherFrame { frame };
        let text = write_dispatcher_frame(frame.clone());
        prop_assert_eq!(read_dispatcher_frame(&text), Ok(frame));
    }

    #[test]
    fn the_size_of_a_task_is_known_before_it_is_written(task in task()) {
        let bytes = task_bytes(&task);
        let frame = Some(Down::Tasks(proto::Tasks { tasks: vec![task] }));
        let text = write_dispatcher_frame(DispatcherFrame { frame });
        prop_assert_eq!(text.len(), "{\"tasks\":{\"tasks\":[]}}".len() + bytes);
    }

    #[test]
    fn no_text_is_too_odd_to_be_judged(text: String) {
        read_worker_frame(&text).ok();
    }
}

#[test]
fn frames_look_as_the_protocol_says() {
    let task = proto::Task {
        token: "72.0.1".into(),
        task_id: 72,
        task_type: "t".into(),
        payload: "{\"n\": 1e400}".into(),
        content_type: JSON.into(),
        attempt: 1,
        fence: 1,
        labels: HashMap::from([("a".into(), "b".into())]),
        ..proto::Task::default()
    };
    let frame = DispatcherFrame {
        frame: Some(Down::Tasks(proto::Tasks { tasks: vec![task] })),
    };
    assert_eq!(
        write_dispatcher_frame(frame),
        r#"{"tasks":{"tasks":[{"token":"72.0.1","task_id":"72","task_type":"t","content_type":"application/json","json":{"n": 1e400},"attempt":1,"labels":{"a":"b"},"fence":"1"}]}}"#
    );
}

#[test]
fn what_is_unknown_or_null_is_ignored() {
    let frame = |text| read_worker_frame(text).unwrap().frame;
    assert_eq!(frame("{}"), None);
    assert_eq!(frame(r#"{"news": {"deep": [[]]}}"#), None);
    let ping = Up::Ping(proto::Ping { sequence: 7 });
    for text in [
        r#"{"ping": {"sequence": 7, "more": 1}, "news": 1, "pong": null}"#,
        r#" {"ping": {"sequence": "7"}} "#,
    ] {
        assert_eq!(frame(text), Some(ping.clone()), "{text}");
    }
}

#[test]
fn a_fault_names_its_field() {
    for (text, place, why) in [
        ("", "", "EOF while parsing"),
        ("[]", "", "expected a map"),
        ("{\"ping\": {\"sequence\": 1}", "", "line 1 column 24"),
        (r#"{"ping": 1}"#, "ping", "object"),
        (
            r#"{"ping": {"sequence": -1}}"#,
            "ping.sequence",
            "whole number",
        ),
        (
            r#"{"ping": {"sequence": 1.5}}"#,
            "ping.sequence",
            "whole number",
        ),
        (r#"{"ping": {}, "pong": {}}"#, "pong", "one at most"),
        (
            r#"{"accepted": {"tokens": "a"}}"#,
            "accepted.tokens",
            "list",
        ),
        (
            r#"{"accepted": {"tokens": [1]}}"#,
            "accepted.tokens",
            "string",
        ),
        (
            r#"{"accepted": {"tokens": ["\ud800"]}}"#,
            "accepted.tokens",
            "Unicode",
        ),
        (
            r#"{"refused": {"reason": "bored"}}"#,
            "refused.reason",
            "no_slot draining unknown_type",
        ),
        (r#"{"refused": {"reason": ""}}"#, "refused.reason", "one of"),
        (r#"{"refused": {"reason": 1}}"#, "refused.reason", "one of"),
        (
            r#"{"register": {"slots": 4294967296}}"#,
            "register.slots",
            "4294967295",
        ),
        (
            r#"{"register": {"resume": [{"task_id": "1"}, {"task_id": true}]}}"#,
            "register.resume[1].task_id",
            "64 bits",
        ),
        (r#"{"results": {"results": {}}}"#, "results.results", "list"),
        (
            r#"{"results": {"results": [1]}}"#,
            "results.results[0]",
            "object",
        ),
        (
            r#"{"results": {"results": [{"token": 1}]}}"#,
            "results.results[0].token",
            "string",
        ),
        (
            r#"{"results": {"results": [{"succeeded": 1}]}}"#,
            "results.results[0].token",
            "missing",
        ),
    ] {
        let fault = read_worker_frame(text).unwrap_err();
        assert_eq!(fault.place, place, "{text}: {fault}");
        assert!(fault.why.contains(why), "{text}: {fault}");
    }
}

#[test]
fn a_result_that_is_malformed_ends_its_task_alone() {
    for (outcome, place) in [
        (r#""failed": {"kind": "bored"}"#, "failed.kind"),
        (r#""succeeded": {"payload": "%"}"#, "succeeded.payload"),
        (
            r#""succeeded": {"payload": "", "json": 1}"#,
            "succeeded.json",
        ),
        (
            r#""succeeded": {"json": 1, "content_type": "text/plain"}"#,
            "succeeded.json",
        ),
        (r#""succeeded": {}, "snoozed": {}"#, "snoozed"),
        (r#""snoozed": {"after_ms": -1}"#, "snoozed.after_ms"),
    ] {
        let text = format!(
            r#"{{"results": {{"results": [{{{outcome}, "token": "1.0.1"}}, {{"token": "2.0.1", "snoozed": {{}}}}]}}}}"#
        );
        let Some(Up::Results(results)) = read_worker_frame(&text).unwrap().frame else {
            panic!("{text} is no results");
        };
        let [bad, good] = results.results.try_into().unwrap();
        let Some(Outcome::Failed(failed)) = bad.outcome else {
            panic!("{text}: {bad:?}");
        };
        assert_eq!(
            (&bad.token[..], failed.class.as_str()),
            (&b"1.0.1"[..], "result_invalid")
        );
        assert_eq!(failed.kind(), proto::FailureKind::Terminal);
        let place = format!("results.results[0].{place} ");
        assert!(failed.message.starts_with(&place), "{}", failed.message);
        assert!(
            matches!(good.outcome, Some(Outcome::Snoozed(_))),
            "{good:?}"
        );
    }
}
