//! `/openapi.json` against what is there: the router, the readers of bodies, the codes; and the manners of the door.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::Path;

use fencepost::api::{CODES, http};
use serde_json::Value;

use crate::support::Producers;

/// Codes that no call over HTTP is refused with by its own rule: of SQL functions for handlers and of the router.
const NO_OPERATION: [&str; 5] = ["FP-012", "FP-013", "FP-014", "FP-016", "FP-107"];

type Routes = BTreeSet<(String, String)>;

/// The paths that a router was built from, as its description for people has them.
fn paths(router: &axum::Router) -> BTreeSet<String> {
    let text = format!("{router:?}");
    let (text, _) = text.split_once("fallback_router").unwrap();
    let found = text.split("RouteId(").filter_map(|part| {
        let (_, rest) = part.split_once("): \"")?;
        let (path, _) = rest.split_once('"')?;
        path.starts_with('/').then(|| path.to_owned())
    });
    // What has no path is a fallback.
    found
        .filter(|path| !path.contains("private__axum"))
        .collect()
}

/// What each path answers to, as the answer to another method says.
async fn routes(side: &Producers) -> Routes {
    let mut routes = Routes::new();
    for path in paths(&http::router(side.state.clone())) {
        let filled = path.replace(['{', '}'], "");
        let answer = side.request("PROPFIND", &filled, "", "").await;
        assert_eq!(answer.status, 405, "{path}: {answer:?}");
        let methods = answer.allow.split(',').map(str::trim);
        for method in methods.filter(|method| *method != "HEAD") {
            routes.insert((method.to_lowercase(), path.clone()));
        }
    }
    routes
}

async fn document(side: &Producers) -> Value {
    let answer = side.get("/openapi.json").await;
    assert_eq!(
        (answer.status, answer.content_type.as_str()),
        (200, "application/json")
    );
    answer.json()
}

/// Method, path and description of each operation.
fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let all = paths.iter().flat_map(|(path, item)| {
        let item = item.as_object().unwrap().iter();
        item.map(|(method, operation)| (method.clone(), path.clone(), operation))
    });
    all.collect()
}

fn resolve<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match schema["$ref"].as_str() {
        None => schema,
        Some(reference) => document
            .pointer(reference.trim_start_matches('#'))
            .unwrap_or_else(|| panic!("{reference} leads nowhere")),
    }
}

/// Every string in the document under this key.
fn strings<'d>(value: &'d Value, key: &str, found: &mut Vec<&'d str>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member.as_str() {
                    Some(text) if name == key => found.push(text),
                    _ => strings(member, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| strings(item, key, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_document_has_every_route_of_the_router_and_no_other() {
    let side = Producers::start().await;
    let document = document(&side).await;
    let documented: Routes = operations(&document)
        .into_iter()
        .map(|(method, path, _)| (method, path))
        .collect();
    let routed = routes(&side).await;
    assert!(routed.len() > 35, "{routed:?}");
    let missing: Vec<_> = routed.difference(&documented).collect();
    assert!(
        missing.is_empty(),
        "describe in src/api/http/openapi/: {missing:?}"
    );
    let left: Vec<_> = documented.difference(&routed).collect();
    assert!(left.is_empty(), "no route: {left:?}");
}

#[tokio::test]
async fn the_document_is_whole_and_says_what_each_operation_is_about() {
    let side = Producers::start().await;
    let document = document(&side).await;
    let mut references = Vec::new();
    strings(&document, "$ref", &mut references);
    assert!(references.len() > 100);
    for reference in references {
        assert!(
            document
                .pointer(reference.trim_start_matches('#'))
                .is_some(),
            "{reference} leads nowhere"
        );
    }
    let mut prose = Vec::new();
    strings(&document, "description", &mut prose);
    for text in prose {
        assert!(!text.contains("[`"), "a link of rustdoc: {text}");
    }
    let tags = document["tags"].as_array().unwrap();
    let tags: Vec<&Value> = tags.iter().map(|tag| &tag["name"]).collect();
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let at = format!("{method} {path}");
        assert!(tags.contains(&&operation["tags"][0]), "{at}");
        assert!(operation["summary"].as_str().unwrap().len() > 5, "{at}");
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap()),
            "{at}"
        );
        let in_path = path.matches('{').count();
        let parameters = operation["parameters"].as_array();
        let parameters: Vec<&Value> = parameters.into_iter().flatten().collect();
        let described = parameters.iter().filter(|one| one["in"] == "path");
        assert_eq!(described.count(), in_path, "{at}");
        for one in parameters {
            assert!(
                one["description"].as_str().unwrap().len() > 3,
                "{at}: {one}"
            );
        }
    }
}

#[tokio::test]
async fn the_document_knows_every_code_that_the_page_of_errors_lists() {
    let side = Producers::start().await;
    let document = document(&side).await;
    let listed: BTreeSet<&str> = include_str!("../../docs/errors.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next())
        .filter(|code| code.starts_with("FP-"))
        .collect();
    let codes = |schema: &Value| -> BTreeSet<String> {
        let all = schema["properties"]["code"]["enum"].as_array().unwrap();
        all.iter()
            .map(|code| code.as_str().unwrap().to_owned())
            .collect()
    };
    let problem = codes(&document["components"]["schemas"]["Problem"]);
    assert_eq!(
        problem,
        listed.iter().map(|code| (*code).to_owned()).collect()
    );

    let mut used = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        for (status, answer) in operation["responses"].as_object().unwrap() {
            let content = &answer["content"]["application/problem+json"];
            let Some(all_of) = content["schema"]["allOf"].as_array() else {
                continue;
            };
            let here = codes(&all_of[1]);
            for code in &here {
                let known = CODES.iter().find(|known| known.code == code).unwrap();
                let expected = fencepost::api::status_of(known.kind).as_u16().to_string();
                assert_eq!(*status, expected, "{method} {path}: {code}");
            }
            used.extend(here);
        }
    }
    let unused: Vec<_> = listed
        .iter()
        .filter(|code| !used.contains(**code))
        .copied()
        .collect();
    assert_eq!(unused, NO_OPERATION);
}

/// Every field and parameter is asked for alone: a reader that does not know it says so before anything else.
#[tokio::test]
async fn readers_know_the_fields_of_the_document_and_no_other() {
    let side = Producers::start().await;
    let document = document(&side).await;
    let mut asked = 0;
    for (method, path, operation) in operations(&document) {
        let mut filled = path.clone();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            let value = parameter["schema"]["enum"][0].as_str().unwrap_or("1");
            filled = filled.replace(&format!("{{{name}}}"), value);
        }
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let queries: Vec<&str> = parameters
            .filter(|one| one["in"] == "query")
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        for name in &queries {
            let answer = side.get(&format!("{filled}?{name}=")).await;
            asked += 1;
            let is_unknown = answer.status == 400 && answer.problem().1 == "FP-102";
            assert!(!is_unknown, "{path} knows no {name}: {answer:?}");
        }
        if !queries.is_empty() {
            let answer = side.get(&format!("{filled}?nonsense=1")).await;
            assert_eq!(
                answer.problem(),
                (400, "FP-102".into(), "nonsense".into()),
                "{path}"
            );
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        if body.is_null() {
            continue;
        }
        let mut body = resolve(&document, body);
        if let Some(either) = body["oneOf"].as_array() {
            body = resolve(&document, &either[0]);
        }
        assert_eq!(body["additionalProperties"], false, "{path}");
        let mut names: Vec<&str> = body["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        names.push("nonsense");
        for name in names {
            // No reader takes a list of lists for anything but a payload.
            let text = format!("{{\"{name}\": [[1]]}}");
            let method = method.to_uppercase();
            let answer = side
                .request(&method, &filled, "application/json", text)
                .await;
            asked += 1;
            let is_unknown = answer.status == 400 && answer.problem().1 == "FP-102";
            assert_eq!(is_unknown, name == "nonsense", "{path}, {name}: {answer:?}");
        }
    }
    assert!(asked > 150, "{asked}");
}

/// PostgreSQL stores no NUL, so nothing has a name with one.
#[tokio::test]
async fn a_nul_in_a_path_or_a_parameter_is_no_fault_of_the_database() {
    let side = Producers::start().await;
    let document = document(&side).await;
    let mut asked = 0;
    let operations = operations(&document).into_iter();
    // A stream of events takes no parameter and has no end.
    for (method, path, operation) in operations.filter(|(_, path, _)| path != "/v1/events") {
        let (mut filled, mut queries) = (path.clone(), vec![String::new()]);
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            if parameter["in"] == "query" {
                queries.push(format!("?{name}=a%00b"));
                continue;
            }
            let value = parameter["schema"]["enum"][0].as_str().unwrap_or("a%00b");
            filled = filled.replace(&format!("{{{name}}}"), value);
        }
        for query in queries {
            let uri = format!("{filled}{query}");
            let method = method.to_uppercase();
            let answer = side.request(&method, &uri, "application/json", "{}").await;
            asked += 1;
            // Neither replica nor hub is here.
            let is_away = [503, 504].contains(&answer.status);
            assert!(answer.status < 500 || is_away, "{method} {uri}: {answer:?}");
        }
    }
    assert!(asked > 60, "{asked}");
}

/// The names that readers match on, from their source.
#[tokio::test]
async fn the_document_has_every_field_that_a_reader_knows() {
    let side = Producers::start().await;
    let document = document(&side).await;
    let mut known = BTreeSet::new();
    for (_, _, operation) in operations(&document) {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            known.insert(parameter["name"].as_str().unwrap().to_owned());
            let values = parameter["schema"]["enum"].as_array().into_iter().flatten();
            known.extend(values.map(|value| value.as_str().unwrap().to_owned()));
        }
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for schema in schemas
        .values()
        .filter(|schema| schema["additionalProperties"] == false)
    {
        known.extend(schema["properties"].as_object().unwrap().keys().cloned());
    }
    let mut matched = BTreeMap::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api/http");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        for arm in source.lines().filter_map(|line| line.split_once("=>")) {
            for name in arm.0.split('|').filter_map(|name| {
                let name = name.trim().strip_prefix('"')?;
                Some(name.split_once('"')?.0)
            }) {
                matched.insert(name.to_owned(), path.clone());
            }
        }
    }
    assert!(matched.len() > 60, "{matched:?}");
    let unknown: Vec<_> = matched
        .iter()
        .filter(|(name, _)| !known.contains(*name))
        .collect();
    assert!(
        unknown.is_empty(),
        "describe in src/api/http/openapi/: {unknown:?}"
    );
}

#[tokio::test]
async fn every_answer_has_the_id_of_its_request() {
    let side = Producers::start().await;
    let good = "0af7651916cd43dd8448eb211c80319c";
    for (path, given, kept) in [
        ("/v1/tasks", Some(good), true),
        ("/healthz", Some("a.b-c_1"), true),
        ("/nowhere", Some(good), true),
        ("/v1/tasks", None, false),
        ("/v1/tasks", Some("two words"), false),
        ("/v1/tasks", Some(""), false),
        ("/v1/tasks", Some(&"x".repeat(129)), false),
    ] {
        let mut ids = BTreeSet::new();
        for _ in 0..2 {
            let headers: Vec<(&str, &str)> = given.iter().map(|id| ("x-request-id", *id)).collect();
            let response = side.raw(path, &headers).await;
            let id = response.headers()["x-request-id"]
                .to_str()
                .unwrap()
                .to_owned();
            assert!((1..=128).contains(&id.len()), "{id}");
            assert_eq!(
                given == Some(id.as_str()),
                kept,
                "{path}: {given:?} gave {id}"
            );
            ids.insert(id);
        }
        assert_eq!(ids.len(), if kept { 1 } else { 2 }, "{ids:?}");
    }
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_who_take_gzip() {
    let side = Producers::start().await;
    let plain = side.get("/openapi.json").await.text;
    let response = side
        .raw("/openapi.json", &[("accept-encoding", "gzip")])
        .await;
    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert_eq!(response.headers()["vary"], "accept-encoding");
    let body = http_body_util::BodyExt::collect(response.into_body())
        .await
        .unwrap()
        .to_bytes();
    assert!(
        body.len() * 4 < plain.len(),
        "{} of {}",
        body.len(),
        plain.len()
    );
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(body.as_ref())
        .read_to_string(&mut unpacked)
        .unwrap();
    assert_eq!(unpacked, plain);

    for (path, accepted) in [
        ("/openapi.json", "br"),
        ("/openapi.json", "identity"),
        ("/healthz", "gzip"),
    ] {
        let response = side.raw(path, &[("accept-encoding", accepted)]).await;
        assert!(
            !response.headers().contains_key("content-encoding"),
            "{path} {accepted}"
        );
    }
}
