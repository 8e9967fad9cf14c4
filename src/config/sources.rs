//! Where settings come from, and their merge.

use std::path::PathBuf;

use figment::providers::{Data, Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::Fault;

/// What variables of ours that are settings start with; those without `__` are something else.
pub(super) const PREFIX: &str = "FENCEPOST_";

/// The configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigFile {
    /// Read if it is there.
    IfPresent(PathBuf),
    /// Named by the user, so it must be there.
    Required(PathBuf),
}

/// One setting given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The flag as it was given, such as `--grpc`.
    pub flag: &'static str,
    /// The key that it sets, such as `server.grpc`.
    pub key: &'static str,
    /// Its value.
    pub value: String,
}

/// All that settings are read from.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The file.
    pub file: ConfigFile,
    /// The environment, as name and value.
    pub environment: Vec<(String, String)>,
    /// The command line.
    pub flags: Vec<Flag>,
}

impl Sources {
    /// This process's environment, and `fencepost.toml` in its directory unless another file is named.
    #[must_use]
    pub fn of_process(config: Option<PathBuf>, flags: Vec<Flag>) -> Self {
        let file = config.map_or_else(
            || ConfigFile::IfPresent("fencepost.toml".into()),
            ConfigFile::Required,
        );
        // A variable that is not Unicode can't be a setting of ours by name, or fails there as text.
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| {
                Some((
                    name.into_string().ok()?,
                    value.to_string_lossy().into_owned(),
                ))
            })
            .collect();
        Self {
            file,
            environment,
            flags,
        }
    }

    /// All sources in one, later ones over earlier ones; with what can't be read at all.
    pub(super) fn merge(&self) -> (Figment, Vec<Fault>) {
        let mut faults = Vec::new();
        let mut figment = Figment::new();
        match self.read_file() {
            Ok(Some(file)) => figment = figment.merge(file),
            Ok(None) => {}
            Err(fault) => faults.push(fault),
        }
        // The conventional name first, so that ours wins over it.
        let url = self
            .environment
            .iter()
            .filter(|(name, value)| name == "DATABASE_URL" && !value.is_empty());
        for (name, value) in url {
            figment = figment.merge(One::new(name, "database.url", value));
        }
        for (name, value) in &self.environment {
            if let Some((section, key)) = name
                .strip_prefix(PREFIX)
                .and_then(|rest| rest.split_once("__"))
            {
                let key = format!("{}.{}", section.to_lowercase(), key.to_lowercase());
                figment = figment.merge(One::new(name, &key, value));
            }
        }
        for flag in &self.flags {
            figment = figment.merge(One::new(flag.flag, flag.key, &flag.value));
        }
        (figment, faults)
    }

    fn read_file(&self) -> Result<Option<Data<Toml>>, Fault> {
        let path = match &self.file {
            ConfigFile::IfPresent(path) if matches!(path.try_exists(), Ok(false)) => {
                return Ok(None);
            }
            ConfigFile::IfPresent(path) | ConfigFile::Required(path) => path,
        };
        let fault = |message| Fault {
            origin: path.display().to_string(),
            key: String::new(),
            message,
        };
        std::fs::read_to_string(path).map_err(|error| fault(format!("can't be read: {error}")))?;
        let file = Toml::file_exact(path);
        file.data()
            .map_err(|error| fault(format!("is not TOML: {error}")))?;
        Ok(Some(file))
    }
}

/// One value, with the name of where it comes from.
struct One {
    origin: String,
    key: String,
    value: String,
}

impl One {
    fn new(origin: &str, key: &str, value: &str) -> Self {
        Self {
            origin: origin.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
        }
    }
}

impl Provider for One {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let nested = figment::util::nest(&self.key, Value::from(self.value.as_str()));
        Ok(Profile::Default.collect(nested.into_dict().unwrap_or_default()))
    }
}
