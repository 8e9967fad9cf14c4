//! Stops the server when this process is killed and can't do so itself.
//!
//! A shell reads from a pipe whose other end this process holds. A line means that all is well and the
//! shell ends; the end of the pipe means that this process is gone, and the shell stops the server that
//! `postmaster.pid` names and, for a temporary directory, removes it. The pid comes from that file and
//! not from us, so that one watchdog serves every restart.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::Error;

/// `$1` is the directory; `$2` is `remove` when it is temporary.
const SCRIPT: &str = r#"
read -r _ && exit
file="$1/data/postmaster.pid"
signal=INT
for second in 1 2 3 4 5 6 7 8 9 10; do
    read -r pid 2>/dev/null < "$file" || break
    kill -s "$signal" "$pid" 2>/dev/null || break
    test "$second" -lt 5 || signal=QUIT
    sleep 1
done
test "$2" != remove || rm -rf "$1"
"#;

#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    pub(super) fn start(home: &Path, temporary: bool) -> Result<Self, Error> {
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "fencepost-watchdog"])
            .arg(home)
            .arg(if temporary { "remove" } else { "keep" })
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What ends the terminal's foreground group must not end the watchdog before its work.
            .process_group(0)
            .spawn()
            .map_err(Error::io("starting the watchdog shell"))?;
        Ok(Self { shell })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // A shell that is gone already has nothing left to be told, and none to wait for.
        if let Some(mut pipe) = self.shell.stdin.take() {
            pipe.write_all(b"\n").ok();
        }
        self.shell.wait().ok();
    }
}
