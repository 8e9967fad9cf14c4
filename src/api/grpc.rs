//! The producers' door over gRPC: translation only.

use std::time::Duration;

use bytes::Bytes;
use tonic::{Request, Response, Status};

use super::traces::context_of;
use super::{Direct, Error, State};
use crate::proto::producer::producer_service_server::{ProducerService, ProducerServiceServer};
use crate::proto::producer::{
    self, CancelRequest, CancelResponse, EnqueueRequest, EnqueueResponse, ExecuteRequest,
    ExecuteResponse, GetRequest, TaskInfo, WaitRequest, WorkflowInfo,
};
use crate::store::enqueue::NewTask;
use crate::store::tasks::{Parts, Task};
use crate::store::workflows::{NewWorkflow, Order, Workflow};
use crate::telemetry::Door;

/// The service to mount.
pub type ProducerServer = ProducerServiceServer<Producer>;

/// Answers producers' calls.
#[derive(Debug, Clone)]
pub struct Producer {
    state: State,
}

/// The service over this state, with its limit on a request's bytes.
#[must_use]
pub fn server(state: State) -> ProducerServer {
    let limit = state.limits.body;
    ProducerServiceServer::new(Producer { state }).max_decoding_message_size(limit)
}

#[tonic::async_trait]
impl ProducerService for Producer {
    async fn enqueue(
        &self,
        request: Request<EnqueueRequest>,
    ) -> Result<Response<EnqueueResponse>, Status> {
        let context = context_of(request.metadata().as_ref());
        let tasks = request.into_inner().tasks.into_iter().map(new_task);
        let enqueued = self.state.take_tasks(Door::Grpc, context, tasks.collect());
        let enqueued = enqueued.await?;
        let tasks = enqueued.into_iter().map(|task| producer::Enqueued {
            task_id: task.task_id,
            created: task.created,
            answer: task.answer.name().to_owned(),
        });
        Ok(Response::new(EnqueueResponse {
            tasks: tasks.collect(),
        }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<TaskInfo>, Status> {
        let request = request.into_inner();
        let parts = Parts {
            payload: request.with_payload,
            result: request.with_payload,
        };
        let task = self.state.get(request.task_id, parts).await?;
        Ok(Response::new(info(task)))
    }

    async fn cancel(
        &self,
        request: Request<CancelRequest>,
    ) -> Result<Response<CancelResponse>, Status> {
        let request = request.into_inner();
        let key = given(request.dispatch_key);
        if key.is_some() && request.task_id != 0 {
            let message = "task_id and dispatch_key exclude each other.";
            return Err(Error::invalid_value("dispatch_key", message).into());
        }
        let Some(key) = key else {
            let state = self.state.cancel(request.task_id, request.reason).await?;
            return Ok(Response::new(CancelResponse {
                state,
                task_id: request.task_id,
            }));
        };
        let namespace = given(request.namespace);
        let view = self.state.cancel_key(namespace, key, request.reason);
        let view = view.await?;
        Ok(Response::new(CancelResponse {
            state: view.state,
            task_id: view.task_id,
        }))
    }

    async fn wait(&self, request: Request<WaitRequest>) -> Result<Response<TaskInfo>, Status> {
        let request = request.into_inner();
        let time = Duration::from_millis(request.timeout_ms);
        let task = self.state.wait(request.task_id, time).await?;
        Ok(Response::new(info(task)))
    }

    async fn execute(
        &self,
        request: Request<ExecuteRequest>,
    ) -> Result<Response<ExecuteResponse>, Status> {
        let request = request.into_inner();
        let timeout = (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms));
        let direct = Direct {
            namespace: given(request.namespace),
            task_queue: request.task_queue,
            task_type: request.task_type,
            node: given(request.node),
            payload: request.payload,
            content_type: given(request.content_type),
            labels: request.labels,
            timeout,
        };
        let reply = self.state.execute(direct).await?;
        let (payload, content_type) = reply.result.unwrap_or_default();
        Ok(Response::new(ExecuteResponse {
            payload,
            content_type,
            worker: reply.worker,
            node: reply.node,
            deliveries: reply.deliveries,
        }))
    }

    async fn start_workflow(
        &self,
        request: Request<producer::StartWorkflowRequest>,
    ) -> Result<Response<producer::StartWorkflowResponse>, Status> {
        let context = context_of(request.metadata().as_ref());
        let request = request.into_inner();
        let workflow = NewWorkflow {
            namespace: given(request.namespace),
            name: given(request.name),
            mode: given(request.mode),
            workflow_key: request.workflow_key,
            paused: request.paused,
            by: request.by,
            continuation: request.continuation.map(Bytes::from),
            members: request.members.into_iter().map(new_task).collect(),
        };
        let started = self.state.take_workflow(Door::Grpc, context, workflow);
        let started = started.await?;
        Ok(Response::new(producer::StartWorkflowResponse {
            workflow_id: started.workflow_id,
            run_id: started.run_id,
            state: started.state,
            created: started.created,
            task_ids: started.task_ids,
        }))
    }

    async fn add_members(
        &self,
        request: Request<producer::AddMembersRequest>,
    ) -> Result<Response<producer::AddMembersResponse>, Status> {
        let context = context_of(request.metadata().as_ref());
        let request = request.into_inner();
        let members = request.members.into_iter().map(new_task).collect();
        let id = request.workflow_id;
        let added = self.state.take_members(Door::Grpc, context, id, members);
        let (run_id, task_ids) = added.await?;
        Ok(Response::new(producer::AddMembersResponse {
            run_id,
            task_ids,
        }))
    }

    async fn get_workflow(
        &self,
        request: Request<producer::GetWorkflowRequest>,
    ) -> Result<Response<WorkflowInfo>, Status> {
        let request = request.into_inner();
        let found = self.state.workflow(request.workflow_id, request.run_id);
        Ok(Response::new(workflow_info(found.await?)))
    }

    async fn order_workflow(
        &self,
        request: Request<producer::OrderWorkflowRequest>,
    ) -> Result<Response<WorkflowInfo>, Status> {
        let request = request.into_inner();
        let order = match request.action.as_str() {
            "pause" => Order::Pause,
            "resume" => Order::Resume,
            "cancel" => Order::Cancel,
            "re-run" => Order::Rerun {
                members: given(request.members).unwrap_or_else(|| "unfinished".to_owned()),
            },
            _ => {
                let message = "action must be pause, resume, cancel or re-run.";
                return Err(Error::invalid_value("action", message).into());
            }
        };
        let ordered =
            self.state
                .order_workflow(request.workflow_id, order, request.by, request.reason);
        Ok(Response::new(workflow_info(ordered.await?)))
    }
}

fn new_task(task: producer::NewTask) -> NewTask {
    NewTask {
        namespace: given(task.namespace),
        task_queue: Some(task.task_queue),
        task_type: Some(task.task_type),
        payload: Some(task.payload),
        content_type: given(task.content_type),
        dispatch_key: task.dispatch_key,
        delay_ms: task.delay_ms,
        run_at: task.run_at,
        priority: task.priority,
        node: task.node,
        max_attempts: task.max_attempts,
        run_timeout_ms: task.run_timeout_ms,
        heartbeat_timeout_ms: task.heartbeat_timeout_ms,
        schedule_to_start_ms: task.schedule_to_start_ms,
        settle: task.settle,
        concurrency_key: task.concurrency_key,
        labels: json_object(&task.labels),
        options: task.options.map(Bytes::from),
    }
}

/// The protocol has no null for these: empty means absent.
fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn json_object(labels: &std::collections::HashMap<String, String>) -> Option<Bytes> {
    if labels.is_empty() {
        return None;
    }
    serde_json::to_vec(labels).ok().map(Bytes::from)
}

fn info(task: Task) -> TaskInfo {
    TaskInfo {
        task_id: task.id,
        namespace: task.namespace,
        task_queue: task.task_queue,
        task_type: task.task_type,
        node: task.node.unwrap_or_default(),
        state: task.state,
        attempt: u32::try_from(task.attempt).unwrap_or_default(),
        priority: task.priority.unwrap_or_default().into(),
        enqueued_at: task.enqueued_at,
        visible_after: task.visible_after.unwrap_or_default(),
        ended_at: task.ended_at.unwrap_or_default(),
        worker: task.worker.unwrap_or_default(),
        error_class: task.error_class.unwrap_or_default(),
        error_message: task.error_message.unwrap_or_default(),
        payload: task.payload.unwrap_or_default().into(),
        content_type: task.content_type,
        result: task.result.unwrap_or_default().into(),
        result_content_type: task.result_type.unwrap_or_default(),
        ended: task.ended,
        result_expired: task.result_expired,
    }
}

fn workflow_info(run: Workflow) -> WorkflowInfo {
    let [members, done, failed, cancelled] = run.members;
    WorkflowInfo {
        workflow_id: run.workflow_id,
        run_id: run.run_id,
        run_number: run.run_number,
        namespace: run.namespace,
        name: run.name,
        mode: run.mode,
        state: run.state,
        paused: run.paused.unwrap_or_default(),
        members,
        done,
        failed,
        cancelled,
        continued_as: run.continued_as.unwrap_or_default(),
        created_at: run.created_at,
        ended_at: run.ended_at.unwrap_or_default(),
    }
}
