//! What owners are told of their dead letters: settings, and the events on their way.

use std::time::Duration;

use deadpool_postgres::GenericClient;
use secrecy::{ExposeSecret as _, SecretString};

use super::{Error, millis, storable};
use crate::domain::id::TaskId;

const SET_HOOK: &str = include_str!("../../sql/set_dead_letter_hook.sql");
const SEND_NOTICES: &str = include_str!("../../sql/send_letter_notices.sql");
const CLAIM_EVENTS: &str = include_str!("../../sql/claim_letter_events.sql");
const RETRY_EVENT: &str = include_str!("../../sql/retry_letter_event.sql");
const END_EVENT: &str = include_str!("../../sql/end_letter_event.sql");

/// Whom a namespace tells of its dead letters; none keeps what is there.
#[derive(Clone, Debug, Default)]
pub struct Hook {
    /// A URL; empty ends it.
    pub webhook: Option<String>,
    /// What the webhook's requests are signed with.
    pub secret: Option<SecretString>,
    /// Whether to NOTIFY `fencepost_dead_letters`.
    pub notify: Option<bool>,
}

impl Hook {
    /// Nothing to set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.webhook.is_none() && self.secret.is_none() && self.notify.is_none()
    }
}

/// Sets what is given.
pub async fn set_hook(
    client: &impl GenericClient,
    namespace: &str,
    hook: &Hook,
) -> Result<(), Error> {
    let statement = client.prepare_cached(SET_HOOK).await?;
    let (webhook, secret) = (
        hook.webhook.as_deref().map(storable),
        hook.secret
            .as_ref()
            .map(|secret| storable(secret.expose_secret())),
    );
    client
        .query(
            &statement,
            &[&storable(namespace), &webhook, &secret, &hook.notify],
        )
        .await?;
    Ok(())
}

/// Sends up to so many notifications, in a transaction of its own; answers how many events those were.
pub async fn send_notices(client: &impl GenericClient, limit: i64) -> Result<i64, Error> {
    let statement = client.prepare_cached(SEND_NOTICES).await?;
    let row = client.query_one(&statement, &[&limit]).await?;
    Ok(row.try_get("sent")?)
}

/// One try to tell an owner, which counts already.
#[derive(Clone, Debug)]
pub struct Event {
    /// The same over all tries.
    pub id: i64,
    /// The dead task.
    pub letter: TaskId,
    /// Whose.
    pub namespace: i32,
    /// This try, from one.
    pub tries: i32,
    /// Since the death.
    pub age: Duration,
    /// Seconds since 1970 by the database's clock.
    pub sent_at: i64,
    /// Where to; none when the owner has ended it meanwhile.
    pub webhook: Option<String>,
    /// What to sign with.
    pub secret: Option<SecretString>,
    /// JSON; none when the letter is gone.
    pub body: Option<String>,
}

/// Takes due events: at most `each` of each namespace, of at most `namespaces` that are not among `busy`. They are this
/// caller's for the time of `lease`.
pub async fn claim(
    client: &impl GenericClient,
    busy: &[i32],
    each: i64,
    namespaces: i64,
    lease: Duration,
) -> Result<Vec<Event>, Error> {
    let statement = client.prepare_cached(CLAIM_EVENTS).await?;
    let rows = client
        .query(&statement, &[&busy, &each, &namespaces, &millis(lease)])
        .await?;
    rows.iter()
        .map(|row| {
            let age: i64 = row.try_get("age_ms")?;
            let secret: Option<String> = row.try_get("secret")?;
            Ok(Event {
                id: row.try_get("event_id")?,
                letter: row.try_get("letter_id")?,
                namespace: row.try_get("namespace_id")?,
                tries: row.try_get("tries")?,
                age: Duration::from_millis(u64::try_from(age).unwrap_or(0)),
                sent_at: row.try_get("sent_at")?,
                webhook: row.try_get("webhook")?,
                secret: secret.map(SecretString::from),
                body: row.try_get("body")?,
            })
        })
        .collect()
}

/// How a try ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The owner took it; true: and judges the letter, which then needs force to be redriven.
    Taken(bool),
    /// It is tried again after this time.
    Later(Duration, String),
    /// It is not tried again.
    GivenUp(String),
    /// There is nothing to tell, or nobody to tell it to.
    Moot,
}

/// Writes down how a try ended.
pub async fn finish(client: &impl GenericClient, event: &Event, told: &Told) -> Result<(), Error> {
    let (taken, judged, error) = match told {
        Told::Later(delay, error) => {
            let statement = client.prepare_cached(RETRY_EVENT).await?;
            let delay = millis(*delay);
            client
                .execute(
                    &statement,
                    &[&event.id, &event.tries, &delay, &storable(error)],
                )
                .await?;
            return Ok(());
        }
        Told::Taken(judged) => (true, *judged, None),
        Told::GivenUp(error) => (false, false, Some(storable(error))),
        Told::Moot => (false, false, None),
    };
    let statement = client.prepare_cached(END_EVENT).await?;
    client
        .execute(
            &statement,
            &[&event.id, &event.letter, &taken, &judged, &error],
        )
        .await?;
    Ok(())
}
