use super::*;

fn sound() -> Facts {
    Facts {
        server: Server {
            version: 150_004,
            not_durable: Vec::new(),
            autovacuum: true,
            max_connections: 100,
            connections: 20,
            standby: false,
            clock_ms: 0,
            owner: "fencepost".into(),
            role: "fencepost".into(),
            owns: true,
        },
        holders: Vec::new(),
        live: Live {
            bytes: 8_000_000,
            rows: 100,
            dead_rows: 700,
            vacuumed_s: Some(30),
        },
        contradictions: Contradictions {
            looked_at: 100,
            ended_too: 0,
            abandoned: 0,
        },
        upkeep: Upkeep {
            alive: 2,
            silent: Vec::new(),
            days_ahead: 14.2,
            unserved: 0,
        },
    }
}

/// The checks that found something, and how bad it is.
fn found(facts: &Facts, skew_ms: i64) -> Vec<(&'static str, Verdict)> {
    let found = judge(facts, skew_ms).into_iter();
    let bad = found.filter(|finding| finding.verdict != Verdict::Ok);
    bad.map(|finding| {
        assert!(!finding.advice.is_empty(), "{finding:?}");
        (finding.check, finding.verdict)
    })
    .collect()
}

#[test]
fn a_sound_database_has_nothing() {
    assert_eq!(found(&sound(), 12), []);
    assert!(
        judge(&sound(), 0)
            .iter()
            .all(|finding| finding.advice.is_empty())
    );
}

#[test]
fn each_fault_is_found_by_its_check_alone() {
    use Verdict::{Problem, Warning};
    type Break = fn(&mut Facts);
    let faults: [(&str, Verdict, Break); 15] = [
        ("role", Warning, |facts| {
            facts.server.role = "app".into();
            facts.server.owns = false;
        }),
        ("server", Warning, |facts| facts.server.version = 190_000),
        ("server", Problem, |facts| facts.server.standby = true),
        ("durability", Problem, |facts| {
            facts.server.not_durable.push("fsync".into());
        }),
        ("autovacuum", Problem, |facts| {
            facts.server.autovacuum = false;
        }),
        ("connections", Warning, |facts| {
            facts.server.connections = 91;
        }),
        ("partitions", Warning, |facts| facts.upkeep.days_ahead = 9.0),
        ("partitions", Problem, |facts| facts.upkeep.days_ahead = 0.5),
        ("replicas", Problem, |facts| facts.upkeep.alive = 0),
        ("replicas", Warning, |facts| {
            facts.upkeep.silent.push("b".into());
        }),
        ("invariants", Problem, |facts| {
            facts.contradictions.ended_too = 1;
        }),
        ("invariants", Warning, |facts| {
            facts.contradictions.abandoned = 1;
        }),
        ("snapshots", Warning, |facts| {
            facts.holders.push(Holder {
                kind: "session".into(),
                pid: Some(7),
                name: Some("report".into()),
                state: Some("idle in transaction".into()),
                seconds: Some(900),
                transactions: Some(12),
            });
        }),
        ("bloat", Warning, |facts| facts.live.dead_rows = 50_000),
        ("workers", Warning, |facts| facts.upkeep.unserved = 3),
    ];
    for (check, verdict, fault) in faults {
        let mut facts = sound();
        fault(&mut facts);
        assert_eq!(found(&facts, 0), [(check, verdict)]);
    }
    assert_eq!(found(&sound(), -1500), [("clock", Warning)]);
}
