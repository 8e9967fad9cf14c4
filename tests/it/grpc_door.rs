//! What the gRPC door says of itself: health as `/readyz` has it, and reflection, to clients that know nothing else.

use std::time::Duration;

use fencepost::store::migrate;
use nix::sys::signal::Signal;
use prost::Message as _;
use prost_types::FileDescriptorProto;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServiceResponse};

use crate::support::{Replica, TestDb};

const STEP: Duration = Duration::from_secs(20);
const SERVICES: [&str; 2] = [
    "fencepost.producer.v1.ProducerService",
    "fencepost.worker.v1.WorkerService",
];

async fn connect(replica: &Replica) -> Channel {
    Channel::from_shared(replica.url())
        .unwrap()
        .connect()
        .await
        .unwrap()
}

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

#[tokio::test]
async fn health_follows_the_database_and_the_drain_and_lets_watchers_go() {
    let db = TestDb::new().await;
    let mut replica = Replica::start(&db.url(), &[]).await;
    let mut client = HealthClient::new(connect(&replica).await);
    for service in ["", SERVICES[0], SERVICES[1]] {
        let answer = client.check(of(service)).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let unknown = client.check(of("nothing")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);

    let mut watched = client.watch(of("")).await.unwrap().into_inner();
    let mut next = async || {
        let next = tokio::time::timeout(STEP, watched.next()).await.unwrap();
        next.map(|answer| answer.unwrap().status())
    };
    assert_eq!(next().await, Some(ServingStatus::Serving));
    replica.signal(Signal::SIGTERM);
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    assert_eq!(next().await, None);
    assert!(replica.ended().await.success());
}

#[tokio::test]
async fn health_waits_for_the_schema_as_readyz_does() {
    let db = TestDb::empty().await;
    let replica = Replica::spawn(&db.url(), &[]).await;
    replica.readyz_turns(503).await;
    let mut client = HealthClient::new(connect(&replica).await);
    let mut watched = client.watch(of(SERVICES[0])).await.unwrap().into_inner();
    let mut next = async || {
        let next = tokio::time::timeout(STEP, watched.next()).await.unwrap();
        next.unwrap().unwrap().status()
    };
    assert_eq!(next().await, ServingStatus::NotServing);
    migrate::run(&db.settings()).await.unwrap();
    assert_eq!(next().await, ServingStatus::Serving);
    assert_eq!(replica.get("/readyz").await, Some(200));
}

/// Asks for one thing over a stream of its own.
async fn reflect(channel: &Channel, what: MessageRequest) -> MessageResponse {
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(what),
    };
    let mut client = ServerReflectionClient::new(channel.clone());
    let asked = client.server_reflection_info(tokio_stream::once(request));
    let mut answers = asked.await.unwrap().into_inner();
    let answer = tokio::time::timeout(STEP, answers.next()).await.unwrap();
    answer.unwrap().unwrap().message_response.unwrap()
}

#[tokio::test]
async fn reflection_names_every_service_and_describes_it() {
    let db = TestDb::new().await;
    let replica = Replica::start(&db.url(), &[]).await;
    let channel = connect(&replica).await;

    let listed = reflect(&channel, MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(listed) = listed else {
        panic!("{listed:?}");
    };
    let mut names: Vec<String> = listed
        .service
        .into_iter()
        .map(|ServiceResponse { name }| name)
        .collect();
    names.sort();
    let expected = [
        SERVICES[0],
        SERVICES[1],
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ];
    assert_eq!(names, expected);

    for (symbol, methods) in [(SERVICES[0], 9), (SERVICES[1], 1)] {
        let what = MessageRequest::FileContainingSymbol(symbol.to_owned());
        let described = reflect(&channel, what).await;
        let MessageResponse::FileDescriptorResponse(described) = described else {
            panic!("{described:?}");
        };
        let bytes = &described.file_descriptor_proto[0];
        let file = FileDescriptorProto::decode(bytes.as_slice()).unwrap();
        let service = &file.service[0];
        assert_eq!(format!("{}.{}", file.package(), service.name()), symbol);
        assert_eq!(service.method.len(), methods, "{symbol}");
    }
}
