use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use testcontainers::core::ContainerPort;
use testcontainers::core::Mount;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt, TestcontainersError};

use super::eventually;

const PORT: ContainerPort = ContainerPort::Tcp(5432);

/// A throwaway PostgreSQL in a container that ends with this process.
///
/// It is kept in a static, which is never dropped; so a shell waits for the end of a pipe that this
/// process holds, and removes the container then.
#[derive(Debug)]
pub struct Container {
    url: String,
    _held: ContainerAsync<GenericImage>,
    _pipe: ChildStdin,
}

impl Container {
    pub async fn start(max_connections: u16) -> Result<Self, TestcontainersError> {
        let container = GenericImage::new("postgres", "17")
            .with_exposed_port(PORT)
            .with_env_var("POSTGRES_PASSWORD", "fencepost")
            .with_mount(Mount::tmpfs_mount("/var/lib/postgresql/data"))
            .with_label("fencepost.test", std::process::id().to_string())
            .with_cmd([
                "postgres".to_owned(),
                "-cfsync=off".to_owned(),
                "-cfull_page_writes=off".to_owned(),
                format!("-cmax_connections={max_connections}"),
            ])
            .with_startup_timeout(Duration::from_mins(1))
            .start()
            .await?;
        let pipe = remove_at_our_end(container.id());
        let host = container.get_host().await?;
        let port = container.get_host_port_ipv4(PORT).await?;
        let url = format!("postgres://postgres:fencepost@{host}:{port}/postgres");
        // The image's first server, which initialises, takes no TCP connections; so the one that does is
        // the one to stay.
        let connected = eventually(Duration::from_secs(30), async || {
            tokio_postgres::connect(&url, tokio_postgres::NoTls)
                .await
                .ok()
        })
        .await;
        drop(connected);
        Ok(Self {
            url,
            _held: container,
            _pipe: pipe,
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}

fn remove_at_our_end(container: &str) -> ChildStdin {
    Command::new("/bin/sh")
        .args([
            "-c",
            "read -r _; docker rm --force --volumes \"$1\"",
            "watchdog",
            container,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap()
        .stdin
        .unwrap()
}
