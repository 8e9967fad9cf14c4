//! Dead letters, made as a worker's last failure makes them.

use deadpool_postgres::GenericClient;
use fencepost::domain::id::{TaskId, Token};
use fencepost::domain::outcome::Failure;
use fencepost::domain::settlement::Move;
use fencepost::store::settle::{self, Return};
use fencepost::store::{Pool, dispatchers};

use super::queue::{MAX_LOSSES, failure};

/// Claims what is ready where `which` holds (SQL over `live`), and ends each delivery by this move and class.
pub async fn end_all(pool: &Pool, which: &str, how: Move, class: &str, node: &str) -> Vec<TaskId> {
    let client = pool.get().await.unwrap();
    let owner = dispatchers::register(&client, "gravedigger", "1").await;
    let claim = format!(
        "with claimed as (
            update fencepost.live
            set state = 1, fence = fence + 1, dispatcher = $1, sweep = 1, claimed_at = clock_timestamp()
            where state = 0 and {which}
            returning id, epoch, fence
        ) select * from claimed order by id"
    );
    let rows = client.query(&claim, &[&owner.unwrap()]).await.unwrap();
    let returns: Vec<Return> = rows
        .iter()
        .map(|row| {
            let token = Token {
                id: row.get("id"),
                epoch: row.get("epoch"),
                fence: row.get("fence"),
            };
            Return {
                error: Some(Failure::new(class, "it broke")),
                node: Some(node.into()),
                ..failure(token, how)
            }
        })
        .collect();
    for batch in returns.chunks(2000) {
        let moved = settle::give_back(&client, batch, MAX_LOSSES).await.unwrap();
        assert_eq!(moved.len(), batch.len());
    }
    returns.iter().map(|one| one.token.id).collect()
}

/// Ends all that is ready there as dead letters.
pub async fn bury(pool: &Pool, which: &str) -> Vec<TaskId> {
    end_all(pool, which, Move::DeadLetter, "oops", "n").await
}

/// One task of queue `q` and type `t` with these further arguments, dead.
pub async fn dead(pool: &Pool, arguments: &str) -> TaskId {
    let call = format!("select task_id from fencepost.enqueue('q', 't', {arguments})");
    let row = pool.get().await.unwrap().query_one(&call, &[]).await;
    let id: TaskId = row.unwrap().get(0);
    assert_eq!(bury(pool, &format!("id = {id}")).await, [id]);
    id
}
