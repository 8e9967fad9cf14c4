//! Pages of lists that go by a key: where a page begins, and where the next one does.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::{Error, LONGEST_PAGE};

/// Which page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The `next` of the page before; none for the first page.
    pub after: Option<String>,
    /// Lines at most.
    pub limit: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            after: None,
            limit: LONGEST_PAGE,
        }
    }
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<T> {
    /// Its lines, in the order of the list.
    pub lines: Vec<T>,
    /// The `after` of the next page; none at the end.
    pub next: Option<String>,
}

impl<T> Listing<T> {
    /// The same page, with its lines as something else.
    pub(super) fn map<U>(self, to: impl FnMut(T) -> U) -> Listing<U> {
        Listing {
            lines: self.lines.into_iter().map(to).collect(),
            next: self.next,
        }
    }
}

impl Window {
    /// The key that all lines are behind. Refuses a limit out of bounds and what is no `next` of this list.
    pub(super) fn key<const N: usize>(&self) -> Result<Option<[String; N]>, Error> {
        if !(1..=LONGEST_PAGE).contains(&self.limit) {
            let message = format!("limit must be between 1 and {LONGEST_PAGE}.");
            return Err(Error::invalid_value("limit", message));
        }
        let Some(after) = &self.after else {
            return Ok(None);
        };
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(after).ok();
        let parts = bytes.and_then(|bytes| serde_json::from_slice::<Vec<String>>(&bytes).ok());
        let key = parts.and_then(|parts| parts.try_into().ok());
        let wrong = || Error::invalid_value("after", "after must be the next of another page.");
        key.map(Some).ok_or_else(wrong)
    }

    /// How many lines to read: one more tells whether there is a next page.
    pub(super) fn rows(&self) -> usize {
        usize::try_from(self.limit).map_or(usize::MAX, |limit| limit.saturating_add(1))
    }

    /// The page out of so many lines.
    pub(super) fn cut<T, const N: usize>(
        &self,
        mut lines: Vec<T>,
        key: impl Fn(&T) -> [String; N],
    ) -> Listing<T> {
        let is_last = lines.len() < self.rows();
        lines.truncate(self.rows() - 1);
        let last = lines.last().filter(|_| !is_last).map(key);
        let next = last.and_then(|key| serde_json::to_vec(&key[..]).ok());
        Listing {
            next: next.map(|text| BASE64_URL_SAFE_NO_PAD.encode(text)),
            lines,
        }
    }
}

/// All lines of a list, page by page.
///
/// # Errors
/// Those of the list.
pub async fn all<T>(
    list: impl AsyncFn(Window) -> Result<Listing<T>, Error>,
) -> Result<Vec<T>, Error> {
    let (mut lines, mut window) = (Vec::new(), Window::default());
    loop {
        let page = list(window).await?;
        lines.extend(page.lines);
        if page.next.is_none() {
            return Ok(lines);
        }
        window = Window {
            after: page.next,
            ..Window::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(after: Option<String>) -> Listing<u32> {
        let window = Window { after, limit: 2 };
        let after = window
            .key::<1>()
            .unwrap()
            .map_or(0, |[key]| key.parse().unwrap());
        let lines = (after + 1..=5).take(window.rows()).collect();
        window.cut(lines, |line| [line.to_string()])
    }

    #[test]
    fn pages_go_on_where_the_one_before_ended() {
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let page = page(after);
            seen.push(page.lines);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, [vec![1, 2], vec![3, 4], vec![5]]);
    }

    #[test]
    fn what_is_no_next_of_this_list_is_refused() {
        let next = page(None).next;
        let window = |after: &str, limit| Window {
            after: Some(after.to_owned()),
            limit,
        };
        let field = |window: Window| window.key::<2>().unwrap_err().field;
        let next = next.unwrap();
        for after in ["", "x", "[]", next.as_str()] {
            assert_eq!(field(window(after, 1)).as_deref(), Some("after"), "{after}");
        }
        for limit in [0, LONGEST_PAGE + 1] {
            assert_eq!(field(window(&next, limit)).as_deref(), Some("limit"));
        }
    }
}
