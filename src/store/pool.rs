//! Connections, and the rule for using them: work runs in a task that is owned here, with a deadline; a
//! connection whose work did not end in time is thrown away, since the server may still be at it.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, QueueMode, RecyclingMethod, Runtime,
};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::TaskTracker;

use super::{CLASSES, Error, Settings, tls};

/// A connection that was used this recently is taken as it is; the others have to answer first. The hot loops save
/// a round trip a statement by that, and repeat what fails.
const FRESH: Duration = Duration::from_secs(1);

/// A pooled connection with its cache of prepared statements (`prepare_cached`).
pub type Client = deadpool_postgres::Client;

/// The half of a dedicated connection that must be polled; it yields the notifications.
pub type Listener = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// What is to be done on a connection.
pub type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'c>>;

/// What work of any kind has made.
type Made = Box<dyn Any + Send>;

/// Work of any kind.
type Job = Box<dyn for<'c> FnOnce(&'c mut Client) -> Work<'c, Made> + Send>;

/// Who does the work. A server process plans a statement when it first meets it, some milliseconds in which a task
/// would wait; what a task's path takes has connections that nobody else uses, with its plans at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Claims, by the one loop that makes them.
    Claim,
    /// Ends of tasks.
    End,
    /// Everything else.
    Other,
}

/// Connections for claims: one, and one for a new term's while an old one's last claim may still run.
const CLAIMS: usize = 2;

/// Connections for ends, as many as there are loops that write them.
pub const ENDS: usize = 2;

/// The connections of this process to the database. Clones share them.
#[derive(Clone)]
pub struct Pool {
    claims: deadpool_postgres::Pool,
    ends: deadpool_postgres::Pool,
    others: deadpool_postgres::Pool,
    listening: Arc<Config>,
    tls: MakeRustlsConnect,
    acquire_timeout: Duration,
    connect_deadline: Duration,
    tasks: TaskTracker,
    /// Work without a result, by the places of [`CLASSES`].
    faults: Arc<[AtomicU64; CLASSES.len()]>,
}

/// How the connections that all work but claims and ends shares are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connections at most.
    pub size: usize,
    /// Connections that are open.
    pub open: usize,
    /// Of these, the ones that wait for work.
    pub idle: usize,
    /// Callers that wait for a connection.
    pub waiting: usize,
}

impl Pool {
    /// Makes the pool without connecting: the database may be down now and come back later.
    ///
    /// # Errors
    /// [`Error::Settings`] when the URL or the certificates can't be used.
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        let (config, trust) = settings.connection("fencepost")?;
        let (listening, _) = settings.connection("fencepost listen")?;
        let tls = tls::connector(trust, settings.tls_root.as_deref())?;
        let connect_deadline = settings.connect_deadline(&config);
        let connections = |size| {
            let manager = Manager::from_config(
                config.clone(),
                tls.clone(),
                ManagerConfig {
                    recycling_method: RecyclingMethod::Fast,
                },
            );
            deadpool_postgres::Pool::builder(manager)
                .max_size(size)
                // The connection that was used last: its server process has the plans and the catalogue at hand.
                .queue_mode(QueueMode::Lifo)
                .wait_timeout(Some(settings.acquire_timeout))
                .create_timeout(Some(connect_deadline))
                .recycle_timeout(Some(settings.acquire_timeout))
                .runtime(Runtime::Tokio1)
                .post_recycle(Hook::async_fn(|client, metrics| {
                    Box::pin(async move {
                        if metrics.last_used() > FRESH {
                            let checked = client.check_connection().await;
                            checked.map_err(HookError::Backend)?;
                        }
                        Ok(())
                    })
                }))
                .build()
                .map_err(|error| Error::Settings(error.to_string()))
        };
        Ok(Self {
            claims: connections(CLAIMS)?,
            ends: connections(ENDS)?,
            others: connections(settings.pool_size)?,
            listening: Arc::new(listening),
            tls,
            acquire_timeout: settings.acquire_timeout,
            connect_deadline,
            tasks: TaskTracker::new(),
            faults: Arc::default(),
        })
    }

    /// A connection, within the acquire time-out. Whoever holds it sees to its deadlines; [`Pool::run`]
    /// does so itself.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is none in time.
    pub async fn get(&self) -> Result<Client, Error> {
        self.get_for(Errand::Other).await
    }

    async fn get_for(&self, errand: Errand) -> Result<Client, Error> {
        let connections = match errand {
            Errand::Claim => &self.claims,
            Errand::End => &self.ends,
            Errand::Other => &self.others,
        };
        match timeout(self.acquire_timeout, connections.get()).await {
            Ok(got) => Ok(got?),
            Err(_) => Err(late("no connection", self.acquire_timeout)),
        }
    }

    /// Does `work` on a connection, in a task of its own, so that a caller who goes away does not stop it
    /// in mid-transaction. The deadline counts from now and includes the wait for a connection.
    ///
    /// ```ignore
    /// let claimed = pool.run(deadline, move |client| Box::pin(async move {
    ///     claim_tasks(client, &lanes).await
    /// })).await?;
    /// ```
    ///
    /// # Errors
    /// Those of `work`; [`Error::Unavailable`] past the deadline, when the work may have been committed.
    pub async fn run<T, F>(&self, deadline: Duration, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Client) -> Work<'c, T> + Send + 'static,
    {
        self.run_for(Errand::Other, deadline, work).await
    }

    /// Does `work` as [`Pool::run`] does, on a connection for this errand.
    ///
    /// # Errors
    /// Those of [`Pool::run`].
    pub async fn run_for<T, F>(
        &self,
        errand: Errand,
        deadline: Duration,
        work: F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Client) -> Work<'c, T> + Send + 'static,
    {
        let job: Job = Box::new(move |client| {
            let worked = work(client);
            Box::pin(async move { Ok(Box::new(worked.await?) as Made) })
        });
        let made = self.do_job(errand, deadline, job).await?;
        let made = made.downcast().map(|made| *made);
        made.map_err(|_| Error::internal("database work ended with another one's answer"))
    }

    /// Of one kind for all kinds of work, so that it is compiled once: there are a hundred.
    async fn do_job(&self, errand: Errand, deadline: Duration, job: Job) -> Result<Made, Error> {
        let end = Instant::now() + deadline;
        let pool = self.clone();
        let (done, answer) = oneshot::channel();
        self.tasks.spawn(async move {
            let worked = match pool.get_by(errand, end, deadline).await {
                Ok(mut client) => {
                    let worked = timeout_at(end, job(&mut client)).await;
                    let worked = worked.unwrap_or_else(|_| Err(late("no answer", deadline)));
                    if worked.as_ref().is_err_and(Error::breaks_connection) {
                        drop(Object::take(client));
                    }
                    worked
                }
                Err(error) => Err(error),
            };
            if let Err(error) = &worked {
                pool.count(error);
            }
            // Nobody may wait for it any more.
            done.send(worked).ok();
        });
        answer
            .await
            .unwrap_or_else(|_| Err(Error::internal("database work ended without an answer")))
    }

    async fn get_by(
        &self,
        errand: Errand,
        end: Instant,
        deadline: Duration,
    ) -> Result<Client, Error> {
        timeout_at(end, self.get_for(errand))
            .await
            .unwrap_or_else(|_| Err(late("no connection", deadline)))
    }

    /// A connection of its own for LISTEN: the client to send with, and the half to poll for
    /// notifications. It belongs to no pool and ends when both are dropped.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the database can't be reached in time.
    pub async fn connect_listener(&self) -> Result<(tokio_postgres::Client, Listener), Error> {
        match timeout(
            self.connect_deadline,
            self.listening.connect(self.tls.clone()),
        )
        .await
        {
            Ok(connected) => Ok(connected?),
            Err(_) => Err(late("no connection", self.connect_deadline)),
        }
    }

    /// How the connections for [`Errand::Other`] are used at this moment.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let status = self.others.status();
        Usage {
            size: status.max_size,
            open: status.size,
            idle: status.available,
            waiting: status.waiting,
        }
    }

    /// Work without a result since this pool was made, by class of SQLSTATE.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = CLASSES.iter().zip(self.faults.iter());
        counts.map(|(class, count)| (*class, count.load(Ordering::Relaxed)))
    }

    fn count(&self, error: &Error) {
        let class = error.class();
        let counts = CLASSES.iter().zip(self.faults.iter());
        for (_, count) in counts.filter(|(known, _)| **known == class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for the work in hand, each until its deadline, then closes the connections.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        for connections in [&self.claims, &self.ends, &self.others] {
            connections.close();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

fn late(what: &str, limit: Duration) -> Error {
    Error::unavailable(format!("{what} within {} ms", limit.as_millis()))
}
