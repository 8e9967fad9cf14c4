//! `fencepost task why`: what each gate says of a task that does not run.

use super::super::database::Database;
use super::super::output::{self, Output};
use crate::api::NodeSeen;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Why {
    /// The task's id
    #[arg(value_name = "ID")]
    id: i64,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

pub(super) async fn why(args: Why) -> anyhow::Result<u8> {
    let view = args.database.open()?.state.why(args.id).await?;
    if args.output == Output::Json {
        output::json(&view)?;
        return Ok(0);
    }
    let mut table = output::table(&["gate", "passed", "detail"]);
    for gate in &view.gates {
        let passed = match gate.passed {
            Some(true) => "yes",
            Some(false) => "no",
            None => "",
        };
        let detail = gate.detail.as_deref().unwrap_or_default();
        table.add_row([gate.gate, passed, detail]);
    }
    output::line(&format!("{}: {}", view.verdict, view.detail))?;
    if let Some(since) = &view.unserved_since {
        output::line(&format!("unserved since {since}"))?;
    }
    if let Some(seen) = &view.node_seen {
        output::line(&match seen {
            NodeSeen::Never => "no worker has ever been on its node".to_owned(),
            NodeSeen::At(at) => format!("a worker was last on its node at about {at}"),
        })?;
    }
    output::line(&table.to_string())?;
    Ok(0)
}
