//! Says who keeps dead rows from being vacuumed: once when it begins and once when it is over. Behind a snapshot that
//! stays open every claim passes over more dead rows, and whoever holds it rarely knows.

use crate::dispatch::{DATABASE_DEADLINE, Hub};
use crate::domain::checkup::Holder;
use crate::store::{Error, checkup};

/// Transactions of applications are shorter; a backup or a report may well take this long once.
const HELD_S: i64 = 300;

/// What the log was told.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    named: Option<Holder>,
}

/// What there is to say.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Held(Holder),
    Over,
}

impl Snapshots {
    /// Looks, and says what is new.
    pub(super) async fn look(&mut self, hub: &Hub) -> Result<(), Error> {
        let holders = hub.pool.run(DATABASE_DEADLINE, |client| {
            Box::pin(async move { checkup::find_holders(client, HELD_S, 1).await })
        });
        let oldest = holders.await?.into_iter().next();
        match self.news(oldest) {
            Some(News::Held(holder)) => tracing::warn!(
                %holder,
                "dead rows can't be vacuumed: claims get slower until it ends"
            ),
            Some(News::Over) => tracing::info!("dead rows can be vacuumed again"),
            None => {}
        }
        Ok(())
    }

    fn news(&mut self, oldest: Option<Holder>) -> Option<News> {
        let same = |holder: &Holder| {
            let named = self.named.as_ref();
            named.is_some_and(|named| {
                (&named.kind, named.pid, &named.name) == (&holder.kind, holder.pid, &holder.name)
            })
        };
        let news = match &oldest {
            Some(holder) if same(holder) => None,
            Some(holder) => Some(News::Held(holder.clone())),
            None => self.named.as_ref().map(|_| News::Over),
        };
        self.named = oldest;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: i32, seconds: i64) -> Holder {
        Holder {
            kind: "session".into(),
            pid: Some(pid),
            name: Some("report".into()),
            state: Some("idle in transaction".into()),
            seconds: Some(seconds),
            transactions: Some(1),
        }
    }

    #[test]
    fn a_holder_is_named_once_and_its_end_told_once() {
        let mut snapshots = Snapshots::default();
        assert_eq!(snapshots.news(None), None);
        let held = News::Held(holder(7, 300));
        assert_eq!(snapshots.news(Some(holder(7, 300))), Some(held));
        assert_eq!(snapshots.news(Some(holder(7, 360))), None);
        let other = News::Held(holder(8, 301));
        assert_eq!(snapshots.news(Some(holder(8, 301))), Some(other));
        assert_eq!(snapshots.news(None), Some(News::Over));
        assert_eq!(snapshots.news(None), None);
    }
}
