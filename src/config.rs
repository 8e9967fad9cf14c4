//! The settings of a replica: defaults, then `fencepost.toml`, then `FENCEPOST_SECTION__KEY`, then flags.
//!
//! Everything is read before anything is refused, so that one run names every mistake, each with where
//! it stands. What is read is complete: nothing is left for its users to check again.

mod error;
mod kinds;
mod reader;
mod retention;
mod sections;
mod sources;
mod tracing;

pub use error::{Errors, Fault};
pub use kinds::is_log_filter;
pub use reader::Entry;
pub use retention::Retention;
pub use sections::{
    Dispatch, Limits, Log, LogFormat, Replica, Server, Settle, Sweep, Tasks, Wake, Workers,
};
pub use sources::{ConfigFile, Flag, Sources};
pub use tracing::Tracing;

use crate::store;
use reader::Reader;

/// All settings, by section.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[database]`
    pub database: store::Settings,
    /// `[server]`
    pub server: Server,
    /// `[workers]`
    pub workers: Workers,
    /// `[replica]`
    pub replica: Replica,
    /// `[tasks]`
    pub tasks: Tasks,
    /// `[limits]`
    pub limits: Limits,
    /// `[wake]`
    pub wake: Wake,
    /// `[sweep]`
    pub sweep: Sweep,
    /// `[dispatch]`
    pub dispatch: Dispatch,
    /// `[settle]`
    pub settle: Settle,
    /// `[retention]`
    pub retention: Retention,
    /// `[log]`
    pub log: Log,
    /// `[tracing]`
    pub tracing: Tracing,
}

impl Config {
    /// Reads all settings.
    ///
    /// # Errors
    /// [`Errors`] with every fault at once: unknown keys, values that can't be, the missing database URL.
    pub fn load(sources: &Sources) -> Result<Self, Errors> {
        Self::explain(sources).map(|(config, _)| config)
    }

    /// Reads all settings and says where each comes from, for people; secrets are left out.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn explain(sources: &Sources) -> Result<(Self, Vec<Entry>), Errors> {
        let (figment, faults) = sources.merge();
        let mut reader = Reader::new(&figment, &sources.environment, faults);
        let config = Self {
            database: sections::database(&mut reader),
            server: Server::read(&mut reader),
            workers: Workers::read(&mut reader),
            replica: Replica::read(&mut reader),
            tasks: Tasks::read(&mut reader),
            limits: Limits::read(&mut reader),
            wake: Wake::read(&mut reader),
            sweep: Sweep::read(&mut reader),
            dispatch: Dispatch::read(&mut reader),
            settle: Settle::read(&mut reader),
            retention: Retention::read(&mut reader),
            log: Log::read(&mut reader),
            tracing: Tracing::read(&mut reader),
        };
        let entries = reader.finish()?;
        Ok((config, entries))
    }
}
