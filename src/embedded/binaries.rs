//! Finds the server's binaries on this machine.

use std::path::{Path, PathBuf};

use super::Error;

/// Where Homebrew links its packages: Apple silicon, Intel, Linux.
const HOMEBREW: [&str; 3] = [
    "/opt/homebrew/opt",
    "/usr/local/opt",
    "/home/linuxbrew/.linuxbrew/opt",
];

/// A directory that has `initdb` and `postgres`.
#[derive(Debug, Clone)]
pub(super) struct Binaries {
    directory: PathBuf,
}

impl Binaries {
    pub(super) fn initdb(&self) -> PathBuf {
        self.directory.join("initdb")
    }

    pub(super) fn postgres(&self) -> PathBuf {
        self.directory.join("postgres")
    }

    fn at(directory: &Path) -> Option<Self> {
        // initdb looks for its share files from where it really lies, so links are resolved first.
        let initdb = directory.join("initdb").canonicalize().ok()?;
        let directory = initdb.parent()?;
        directory.join("postgres").is_file().then(|| Self {
            directory: directory.to_owned(),
        })
    }
}

/// The first of: `FENCEPOST_PG_BIN`, `PATH`, the newest Debian package, Homebrew.
pub(super) fn find() -> Result<Binaries, Error> {
    if let Some(named) = std::env::var_os("FENCEPOST_PG_BIN") {
        let named = PathBuf::from(named);
        return Binaries::at(&named).ok_or(Error::WrongBinaries(named));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(newest_first("/usr/lib/postgresql", ""))
        .chain(
            HOMEBREW
                .into_iter()
                .flat_map(|prefix| newest_first(prefix, "postgresql@")),
        )
        .chain(
            HOMEBREW
                .into_iter()
                .map(|prefix| Path::new(prefix).join("postgresql/bin")),
        )
        .find_map(|directory| Binaries::at(&directory))
        .ok_or(Error::NoBinaries)
}

/// `PARENT/{prefix}{version}/bin`, the highest version first.
fn newest_first(parent: &str, prefix: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry
                .file_name()
                .to_str()?
                .strip_prefix(prefix)?
                .parse()
                .ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path)
}
