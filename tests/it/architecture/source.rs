//! Reads Rust source well enough to tell code from comments and literals.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `dir` (relative to the root) that ends in `extension`, sorted.
pub fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![root().join(dir)];
    while let Some(dir) = pending.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A string literal, as written between its quotes.
pub struct Literal {
    pub text: String,
    pub start: usize,
}

/// One source file, its code apart from its comments and literals.
pub struct Source {
    /// Path from the root, with `/`.
    pub path: String,
    pub lines: usize,
    /// The text with comments and literals blanked; every offset and line stays where it was.
    pub code: String,
    pub literals: Vec<Literal>,
}

impl Source {
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let (code, literals) = split(&text);
        Self {
            path: path
                .strip_prefix(root())
                .unwrap()
                .to_string_lossy()
                .replace('\\', "/"),
            lines: text.lines().count(),
            code,
            literals,
        }
    }

    /// The same file without what is compiled for tests only.
    pub fn without_tests(mut self) -> Self {
        const MARK: &str = "#[cfg(test)]";
        while let Some(start) = self.code.find(MARK) {
            let end = item_end(&self.code, start + MARK.len());
            blank(&mut self.code, start..end);
            self.literals
                .retain(|literal| !(start..end).contains(&literal.start));
        }
        self
    }

    /// `path:line` of a byte offset.
    pub fn place(&self, offset: usize) -> String {
        let line = 1 + self.code[..offset].matches('\n').count();
        format!("{}:{line}", self.path)
    }

    /// The module path of the file: `store::claim` for `src/store/claim.rs`.
    pub fn module(&self) -> Vec<&str> {
        let inner = self
            .path
            .trim_start_matches("src/")
            .trim_start_matches("tests/it/");
        inner.trim_end_matches(".rs").split('/').collect()
    }
}

/// Where the item that begins at `from` ends: behind its `;`, or behind its matching brace.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return offset + 1,
            b'}' => depth -= 1,
            b';' if depth == 0 => return offset + 1,
            _ => {}
        }
    }
    code.len()
}

fn blank(code: &mut String, range: Range<usize>) {
    let spaces: String = code[range.clone()]
        .bytes()
        .map(|byte| if byte == b'\n' { '\n' } else { ' ' })
        .collect();
    code.replace_range(range, &spaces);
}

/// Blanks comments and the insides of literals, and returns the string literals.
fn split(text: &str) -> (String, Vec<Literal>) {
    let mut code = text.to_owned();
    let mut literals = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let end = if rest.starts_with("//") {
            at + rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            at + block_comment(rest)
        } else if let Some((open, close)) = string(text, at) {
            let inside = at + open..at + close;
            literals.push(Literal {
                text: text[inside.clone()].to_owned(),
                start: inside.start,
            });
            blank(&mut code, inside);
            // The closing quote, and the hashes of a raw string, are code that says nothing.
            at += close + 1;
            continue;
        } else if let Some(length) = character(rest) {
            at + length
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        blank(&mut code, at..end);
        at = end;
    }
    (code, literals)
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        match rest.as_bytes().get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The inside of a string literal that begins at `at`, as offsets from there.
fn string(text: &str, at: usize) -> Option<(usize, usize)> {
    let rest = &text[at..];
    if rest.starts_with('"') {
        let mut escaped = false;
        for (offset, byte) in rest.bytes().enumerate().skip(1) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => return Some((1, offset)),
                _ => {}
            }
        }
        return Some((1, rest.len() - 1));
    }
    let hashes = rest.strip_prefix('r')?;
    let named =
        at > 0 && matches!(text.as_bytes()[at - 1], b'_' | b'a' | b'c'..=b'z' | b'A'..=b'Z');
    let count = hashes.bytes().take_while(|byte| *byte == b'#').count();
    if named || hashes.as_bytes().get(count) != Some(&b'"') {
        return None;
    }
    let open = 1 + count + 1;
    let close = rest[open..].find(&format!("\"{}", "#".repeat(count)))?;
    Some((open, open + close))
}

/// The length of a character literal; a lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    if inside.starts_with('\\') {
        return inside[2..].find('\'').map(|end| end + 4);
    }
    let first = inside.chars().next()?.len_utf8();
    inside[first..].starts_with('\'').then_some(first + 2)
}

#[test]
fn code_is_told_from_comments_and_literals() {
    let text = r##"let a = "x.unwrap() \" y"; // b.unwrap()
let c: &'static str = r#"select "d" "#; /* e /* f */ g */ let q = '"'; let h = '\'';
"##;
    let (code, literals) = split(text);
    assert_eq!(code.len(), text.len());
    assert!(!code.contains("unwrap") && !code.contains('e'.to_string().repeat(2).as_str()));
    assert!(code.contains("&'static str") && code.contains("let h ="));
    let texts: Vec<_> = literals
        .iter()
        .map(|literal| literal.text.as_str())
        .collect();
    assert_eq!(texts, [r#"x.unwrap() \" y"#, r#"select "d" "#]);
}
