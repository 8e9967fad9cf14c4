//! Where namespaces want their tasks to run, as last read: direct requests ask this and no table.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;

use crate::dispatch::hub::DATABASE_DEADLINE;
use crate::domain::placement::Placement;
use crate::store::{self, Pool};

/// The namespaces that direct requests came for lately. The last known placement holds while the database is away.
#[derive(Debug, Default)]
pub(super) struct Placements {
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Debug)]
struct Known {
    placement: Placement,
    /// It is in the database, and so are not more of them than there are namespaces.
    exists: bool,
    /// Asked for since the last refresh: a name that somebody made up is forgotten when nobody asks for it.
    used: bool,
}

impl Placements {
    /// Reads the namespace if it is not known yet. One that does not exist has no wishes, and is not made.
    ///
    /// # Errors
    /// Those of the database: without any earlier answer, nothing may run.
    pub(super) async fn learn(&self, pool: &Pool, name: &str) -> Result<(), store::Error> {
        if self.known.lock().contains_key(name) {
            return Ok(());
        }
        self.read(pool, vec![name.to_owned()]).await
    }

    /// The last known placement.
    pub(super) fn get(&self, name: &str) -> Option<Placement> {
        let mut known = self.known.lock();
        let known = known.get_mut(name)?;
        known.used = true;
        Some(known.placement.clone())
    }

    /// Reads again what is in use.
    ///
    /// # Errors
    /// Those of the database; what was known stays.
    pub(super) async fn refresh(&self, pool: &Pool) -> Result<(), store::Error> {
        let names: Vec<String> = {
            let mut known = self.known.lock();
            known.retain(|_, known| std::mem::replace(&mut known.used, false) || known.exists);
            known.keys().cloned().collect()
        };
        if names.is_empty() {
            return Ok(());
        }
        self.read(pool, names).await
    }

    async fn read(&self, pool: &Pool, names: Vec<String>) -> Result<(), store::Error> {
        let asked = names.clone();
        let mut found = pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(async move { store::routes::read_placements(client, &asked).await })
            })
            .await?;
        let mut known = self.known.lock();
        for name in names {
            let exists = found.contains_key(&name);
            let placement = match (found.remove(&name), known.get(&name)) {
                (Some(Some(placement)), _) => placement,
                // It can't be read: the last known one stays, and without one nobody may have it.
                (Some(None), Some(last)) => last.placement.clone(),
                (Some(None), None) => Placement::Require(BTreeSet::new()),
                (None, _) => Placement::default(),
            };
            let used = known.get(&name).is_none_or(|known| known.used);
            let entry = Known {
                placement,
                exists,
                used,
            };
            known.insert(name, entry);
        }
        Ok(())
    }
}
