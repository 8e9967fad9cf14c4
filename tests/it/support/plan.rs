use deadpool_postgres::GenericClient;
use serde_json::Value;
use tokio_postgres::SimpleQueryMessage;

/// What the planner makes of a statement, as `EXPLAIN (FORMAT JSON)` tells it.
#[derive(Debug)]
pub struct Plan(Value);

impl Plan {
    /// The plan of a prepared statement, without running it.
    pub async fn of(client: &tokio_postgres::Client, execute: &str) -> Self {
        Self::explain(client, &format!("explain (format json) {execute}")).await
    }

    /// Runs the statement, counts what it reads and takes it back.
    pub async fn measure(client: &tokio_postgres::Client, execute: &str) -> Self {
        client.batch_execute("begin").await.unwrap();
        let explain =
            format!("explain (analyze, buffers, timing off, summary off, format json) {execute}");
        let plan = Self::explain(client, &explain).await;
        client.batch_execute("rollback").await.unwrap();
        plan
    }

    async fn explain(client: &tokio_postgres::Client, explain: &str) -> Self {
        let answer = client.simple_query(explain).await.unwrap();
        let text: String = answer
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect();
        let mut plans: Value = serde_json::from_str(&text).unwrap();
        Self(plans[0]["Plan"].take())
    }

    /// Every node with those above it, the root first.
    pub fn nodes(&self) -> Vec<(&Value, Vec<&Value>)> {
        fn walk<'p>(
            node: &'p Value,
            above: &[&'p Value],
            found: &mut Vec<(&'p Value, Vec<&'p Value>)>,
        ) {
            found.push((node, above.to_vec()));
            let above = [above, &[node]].concat();
            for child in node["Plans"].as_array().into_iter().flatten() {
                walk(child, &above, found);
            }
        }
        let mut found = Vec::new();
        walk(&self.0, &[], &mut found);
        found
    }

    /// Pages that the statement touched, in the cache or on disk.
    pub fn buffers(&self) -> u64 {
        let count = |name: &str| self.0[name].as_u64().unwrap();
        count("Shared Hit Blocks") + count("Shared Read Blocks")
    }

    /// Rows that its nodes gave to each other, or looked at and left out.
    pub fn work(&self) -> f64 {
        let of = |node: &Value| {
            let parts = [
                "Actual Rows",
                "Rows Removed by Filter",
                "Rows Removed by Join Filter",
            ];
            let rows = parts.map(|part| node[part].as_f64().unwrap_or(0.0));
            rows.iter().sum::<f64>() * node["Actual Loops"].as_f64().unwrap()
        };
        self.nodes().iter().map(|(node, _)| of(node)).sum()
    }

    /// Rows that the statement answered, or changed.
    pub fn rows(&self) -> f64 {
        self.0["Actual Rows"].as_f64().unwrap()
    }

    pub fn text(&self) -> String {
        serde_json::to_string_pretty(&self.0).unwrap()
    }
}

/// Whether a node reads a table that grows with the backlog or the history, and its name.
pub fn large_table(node: &Value) -> Option<&str> {
    let name = node["Relation Name"].as_str()?;
    let large = ["live", "task", "outcome", "failure", "dead_letter"];
    let parent = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
    large.contains(&parent).then_some(name)
}

/// Text that a node judges by, wherever it stands.
pub fn conditions(node: &Value) -> String {
    let parts = [
        "Index Cond",
        "Filter",
        "Join Filter",
        "TID Cond",
        "Recheck Cond",
    ];
    let texts = parts.iter().filter_map(|part| node[*part].as_str());
    texts.collect::<Vec<_>>().join(" ")
}

/// `{1,2,3}` for an array parameter.
pub fn array<T: std::fmt::Display>(values: impl IntoIterator<Item = T>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    format!("'{{{}}}'", values.join(","))
}

/// The same value so many times.
pub fn repeat(value: &str, times: usize) -> String {
    array(std::iter::repeat_n(value, times))
}

/// Prepares a statement under a name of its own.
pub async fn prepare(client: &impl GenericClient, name: &str, text: &str) {
    let statement = format!(
        "prepare {name} as {}",
        text.trim_end().trim_end_matches(';')
    );
    client.batch_execute(&statement).await.unwrap();
}
