//! `fencepost namespace`: list, set.

use clap::Subcommand;
use secrecy::SecretString;

use super::Usage;
use super::database::Database;
use super::output::{self, Output};
use crate::api::{NamespaceView, page};
use crate::store::letter_events::Hook;
use crate::store::queues::NamespaceSettings;
use crate::store::rates::RateSettings;

/// What to do with namespaces.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: NamespaceCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum NamespaceCommand {
    /// List namespaces and their settings
    List(List),
    /// Change settings of a namespace, which is made if it is new; running tasks run on
    Set(Set),
}

#[derive(Debug, Clone, clap::Args)]
struct List {
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Set {
    /// The namespace
    #[arg(value_name = "NAME")]
    name: String,
    /// Where its tasks run: on those nodes while a worker there is live (prefer), or there only (require)
    #[arg(long, value_name = "anywhere|prefer:NODE,…|require:NODE,…", value_parser = placement)]
    placement: Option<serde_json::Value>,
    /// Whether it takes tasks for declared queues only
    #[arg(long, value_name = "true|false")]
    require_declared_queues: Option<bool>,
    /// Its share of the slots beside other namespaces with due work, 1 to 1000
    #[arg(long, value_name = "N")]
    weight: Option<i32>,
    /// How many of its tasks may run at the same time, over all replicas
    #[arg(long, value_name = "N|none", value_parser = super::quota)]
    max_in_flight: Option<i32>,
    /// How many of its tasks may start in a second, minute or hour, over all replicas
    #[arg(long, value_name = "N/s|N/min|N/h|none")]
    rate: Option<String>,
    /// How many of them may start at once; unless set, as many as the rate gives in a second
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    burst: Option<i32>,
    /// POST its dead letters there, signed; none ends it
    #[arg(long, value_name = "URL|none")]
    dead_letter_webhook: Option<String>,
    /// The environment variable with the secret that signs them, 16 characters or more; it is never shown again
    #[arg(long, value_name = "NAME")]
    secret_env: Option<String>,
    /// NOTIFY `fencepost_dead_letters` of its dead letters
    #[arg(long, value_name = "true|false")]
    dead_letter_notify: Option<bool>,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

/// Does it.
///
/// # Errors
/// [`crate::api::Error`], [`Usage`] and what output may run into.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        NamespaceCommand::List(args) => {
            let session = args.database.open()?;
            let namespaces =
                page::all(async |window| session.state.namespaces(window).await).await?;
            if namespaces.is_empty() {
                output::say(
                    "no namespace yet; its first task makes it, or `fencepost namespace set NAME`",
                );
            }
            show(args.output, namespaces)
        }
        NamespaceCommand::Set(args) => set(args).await,
    }
}

/// Only the form is judged here; the database judges mode and names.
fn placement(text: &str) -> Result<serde_json::Value, Usage> {
    match text.split_once(':') {
        None if text == "anywhere" => Ok(serde_json::json!({"mode": "anywhere"})),
        Some((mode @ ("prefer" | "require"), nodes)) => {
            let nodes: Vec<&str> = nodes.split(',').map(str::trim).collect();
            Ok(serde_json::json!({"mode": mode, "nodes": nodes}))
        }
        _ => Err(Usage(
            "a placement is anywhere, prefer:NODE,… or require:NODE,…".to_owned(),
        )),
    }
}

/// Not an argument of its own, which everybody on this machine could see.
fn secret(variable: &str) -> Result<SecretString, Usage> {
    let secret = std::env::var(variable);
    let secret =
        secret.map_err(|_| Usage(format!("the environment has no variable {variable}")))?;
    Ok(secret.into())
}

async fn set(args: Set) -> anyhow::Result<u8> {
    let hook = Hook {
        webhook: args.dead_letter_webhook.map(|url| match url.as_str() {
            "none" => String::new(),
            _ => url,
        }),
        secret: args.secret_env.as_deref().map(secret).transpose()?,
        notify: args.dead_letter_notify,
    };
    let settings = NamespaceSettings {
        placement: args.placement.map(|placement| placement.to_string().into()),
        require_declared_queues: args.require_declared_queues,
        weight: args.weight,
        max_in_flight: args.max_in_flight,
        rate: RateSettings {
            rate: args.rate,
            burst: args.burst,
        },
        hook,
    };
    if settings.is_empty() {
        return Err(
            Usage("nothing to set; see `fencepost namespace set --help`".to_owned()).into(),
        );
    }
    let state = args.database.open()?.state;
    let namespace = state.set_namespace(args.name, settings).await?;
    match args.output {
        Output::Json => output::json(&namespace)?,
        Output::Table => {
            show(Output::Table, vec![namespace])?;
        }
    }
    Ok(0)
}

fn show(how: Output, namespaces: Vec<NamespaceView>) -> anyhow::Result<u8> {
    if how == Output::Json {
        output::json(&namespaces)?;
        return Ok(0);
    }
    if namespaces.is_empty() {
        return Ok(0);
    }
    let mut table = output::table(&[
        "namespace",
        "placement",
        "declared queues only",
        "weight",
        "max in flight",
        "rate",
        "paused",
        "dead letters to",
    ]);
    for namespace in namespaces {
        let yes = |is: bool| if is { "yes" } else { "no" };
        let placement = namespace
            .placement
            .as_ref()
            .map(|placement| placement.get());
        table.add_row([
            namespace.namespace.as_str(),
            placement.unwrap_or_default(),
            yes(namespace.require_declared_queues),
            &namespace.weight.to_string(),
            &output::quota(namespace.max_in_flight),
            &namespace.rate.to_string(),
            yes(namespace.paused),
            namespace.dead_letter_webhook.as_deref().unwrap_or_default(),
        ]);
    }
    output::line(&table.to_string())?;
    Ok(0)
}
