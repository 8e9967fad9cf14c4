//! The rows of what a worker brings along.

use std::time::Duration;

use crate::dispatch::deliver;
use crate::dispatch::hub::{DATABASE_DEADLINE, Hub};
use crate::domain::id::{TaskId, Token};
use crate::domain::route::Route;
use crate::domain::task::{Body, Claim};
use crate::fleet::Profile;
use crate::store;
use crate::store::claim::{self, Adopted};
use crate::telemetry::trace::{DeliverySpan, Outgoing, Step};

/// Adopts what can be adopted, with the bodies, and tells what is held though it can't. One row that somebody keeps locked
/// stops only its own adoption.
pub(super) async fn adopt(
    hub: &Hub,
    sweep: i64,
    tokens: Vec<Token>,
) -> Result<(Vec<Body>, Vec<Adopted>, Vec<Token>), store::Error> {
    let (dispatcher, deadlines) = (hub.dispatcher, hub.settings.deadlines());
    let given_up: Vec<i64> = hub
        .given_up
        .lock()
        .iter()
        .map(|(sweep, _)| *sweep)
        .collect();
    hub.pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move {
                let all =
                    claim::adopt(client, dispatcher, sweep, &given_up, &tokens, deadlines).await;
                let adopted = match all {
                    Err(store::Error::Conflict(_)) => {
                        let mut adopted = Vec::new();
                        for token in &tokens {
                            let one = [*token];
                            match claim::adopt(
                                client, dispatcher, sweep, &given_up, &one, deadlines,
                            )
                            .await
                            {
                                Ok(one) => adopted.extend(one),
                                Err(store::Error::Conflict(_)) => {}
                                Err(error) => return Err(error),
                            }
                        }
                        adopted
                    }
                    all => all?,
                };
                let ids: Vec<TaskId> = adopted.iter().map(|task| task.claim.token.id).collect();
                let left: Vec<Token> = tokens
                    .into_iter()
                    .filter(|token| !ids.contains(&token.id))
                    .collect();
                let held = claim::find_held(client, &left).await?;
                let held = left.into_iter().filter(|token| held.contains(&token.id));
                Ok((
                    claim::read_bodies(client, &ids).await?,
                    adopted,
                    held.collect(),
                ))
            })
        })
        .await
}

/// The span of a delivery that goes on here. Its handler's is below that of the replica that sent it.
pub(super) fn span(
    hub: &Hub,
    claim: &Claim,
    body: &Body,
    (route, worker): (&Route, &Profile),
) -> DeliverySpan {
    let tracing = &hub.telemetry.tracing;
    if !tracing.is_on() {
        return DeliverySpan::default();
    }
    let outgoing = || Outgoing {
        token: claim.token,
        route,
        attempt: claim.attempt,
        since: Duration::ZERO,
    };
    let span = tracing.delivery(outgoing, &mut deliver::trace_context(body));
    span.worker(&worker.identity);
    span.step(Step::Adopted);
    span
}
