//! The account that the server runs as: PostgreSQL refuses to run as root.

use std::path::Path;

use nix::unistd::{Uid, User};

use super::Error;

/// A user and its group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Another account to run as, when this process is root.
pub(super) fn for_server() -> Result<Option<Account>, Error> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        let user = User::from_name(name)
            .map_err(|errno| Error::io(format!("looking up user {name}"))(errno.into()))?;
        if let Some(user) = user {
            return Ok(Some(Account {
                uid: user.uid.as_raw(),
                gid: user.gid.as_raw(),
            }));
        }
    }
    Err(Error::NoAccount)
}

impl Account {
    /// Gives the file or directory to this account.
    pub(super) fn own(self, path: &Path) -> Result<(), Error> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid)).map_err(Error::io(format!(
            "giving {} to the server's account",
            path.display()
        )))
    }
}
