use std::sync::atomic::{AtomicU32, Ordering};

use fencepost::store::{Pool, Settings};

use super::cluster::{Cluster, connect};

/// A database of one test's own, cloned from the migrated template; dropped with it.
#[derive(Debug)]
pub struct TestDb {
    cluster: &'static Cluster,
    name: String,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl TestDb {
    /// With all migrations.
    pub async fn new() -> Self {
        let cluster = Cluster::get().await;
        Self::make(cluster, &format!("template {}", cluster.template())).await
    }

    /// Without any table.
    pub async fn empty() -> Self {
        Self::make(Cluster::get().await, "template template0 encoding 'UTF8'").await
    }

    /// As `options` of `create database` say.
    pub async fn with(options: &str) -> Self {
        Self::make(Cluster::get().await, options).await
    }

    async fn make(cluster: &'static Cluster, options: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The process id alone repeats from container to container on a server that they share.
        let name = format!("fencepost_test_{:08x}_{number}", fastrand::u32(..));
        let create = format!("create database {name} {options}");
        cluster.admin().await.batch_execute(&create).await.unwrap();
        Self { cluster, name }
    }

    pub fn url(&self) -> String {
        self.cluster.url_of(&self.name)
    }

    /// A plain connection, without the session settings of a replica.
    pub async fn connect(&self) -> tokio_postgres::Client {
        connect(&self.url()).await
    }

    pub fn settings(&self) -> Settings {
        Settings::new(self.url())
    }

    pub fn pool(&self) -> Pool {
        Pool::new(&self.settings()).unwrap()
    }
}

impl Drop for TestDb {
    /// On a thread of its own, since a drop can't await and the test's runtime may be ending.
    fn drop(&mut self) {
        let (cluster, name) = (self.cluster, std::mem::take(&mut self.name));
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let statement = format!("drop database if exists {name} with (force)");
                // Best effort: the server is most often a throwaway itself.
                cluster.admin().await.batch_execute(&statement).await.ok();
            });
            std::io::Result::Ok(())
        });
        dropping.join().ok();
    }
}
