use std::time::{Duration, Instant};

/// Asks again and again until there is an answer.
///
/// # Panics
/// When the deadline passes without one.
#[track_caller]
pub fn eventually<T>(
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let end = Instant::now() + deadline;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(
                Instant::now() < end,
                "nothing within {deadline:?}, asked at {caller}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
