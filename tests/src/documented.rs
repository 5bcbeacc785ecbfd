//! Blocks of figures in the project's pages. Each stands between markers, and the first names the command that writes it:
//!
//! ```text
//! <!-- NAME: COMMAND -->
//! ...
//! <!-- end of NAME -->
//! ```
//!
//! Owns the markers and the places of the pages. Tests write their blocks with `BLESS=1` and fail without when one has
//! drifted; blocks of measurements are written by the program `numbers`. It must never know what a block says.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The pages that have blocks.
pub const PAGES: [&str; 5] =
    ["README.md", "docs/durability.md", "docs/guards.md", "docs/performance.md", "docs/recovery.md"];

/// One test of a process writes at a time.
static WRITING: Mutex<()> = Mutex::new(());

/// A block as it stands in its page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its name, of which a page has one.
    pub name: String,
    /// What writes it.
    pub command: String,
    /// What stands between the markers.
    pub text: String,
}

/// The workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All blocks of a page, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let whole = read(page);
    let mut rest = whole.as_str();
    std::iter::from_fn(|| {
        let (name, command, behind) = loop {
            let (_, begin) = rest.split_once("<!-- ")?;
            let (marker, behind) = begin.split_once(" -->\n")?;
            rest = behind;
            if let Some((name, command)) = marker.split_once(": ") {
                break (name.to_owned(), command.to_owned(), behind);
            }
        };
        let (text, _) =
            behind.split_once(&end_of(&name)).unwrap_or_else(|| panic!("{page}: {name} has no end"));
        Some(Block { text: text.to_owned(), name, command })
    })
    .collect()
}

/// A block of a page that has it.
pub fn block(page: &str, name: &str) -> Block {
    let found = blocks(page).into_iter().find(|block| block.name == name);
    found.unwrap_or_else(|| panic!("{page} has no place for {name}"))
}

/// Fails unless the block says what was found; with `BLESS=1` it is written.
pub fn assert_documented(page: &str, name: &str, found: &str) {
    if std::env::var_os("BLESS").is_some() {
        write(page, name, found);
    }
    let documented = block(page, name).text;
    assert!(documented == found, "{name} in {page} has drifted; look at it, then run with BLESS=1\n{found}");
}

/// The same for what was counted. Counts depend a little on the machine: on how deep and how long its paths are, and so on
/// how many directories are synced and how many records a segment holds. They have drifted when one is further off than a
/// quarter, or three.
pub fn assert_counted(page: &str, name: &str, found: &str) {
    if std::env::var_os("BLESS").is_some() {
        write(page, name, found);
    }
    let documented = block(page, name).text;
    let is_near = documented.lines().count() == found.lines().count()
        && documented.lines().zip(found.lines()).all(|(documented, found)| are_near(documented, found));
    assert!(is_near, "{name} in {page} has drifted; look at it, then run with BLESS=1\n{found}");
}

/// Two lines that say the same with about the same counts. In a row of a table only the first cell and cells that are
/// counts are compared: what stands beside them is an example.
fn are_near(documented: &str, found: &str) -> bool {
    let [documented, found] =
        [documented, found].map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let is_row = documented.len() > 1;
    documented.len() == found.len()
        && documented.iter().zip(&found).enumerate().all(|(place, (documented, found))| {
            match (documented.parse::<u64>(), found.parse::<u64>()) {
                (Ok(documented), Ok(found)) => is_near(documented, found),
                (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
                (Err(_), Err(_)) => (is_row && place > 1) || words_are_near(documented, found),
            }
        })
}

fn words_are_near(documented: &str, found: &str) -> bool {
    let [documented, found] = [documented, found].map(|text| text.split(' ').collect::<Vec<_>>());
    documented.len() == found.len()
        && documented.iter().zip(&found).all(|(documented, found)| {
            match (documented.parse::<u64>(), found.parse::<u64>()) {
                (Ok(documented), Ok(found)) => is_near(documented, found),
                (Ok(_) | Err(_), Ok(_) | Err(_)) => documented == found,
            }
        })
}

fn is_near(documented: u64, found: u64) -> bool {
    documented.abs_diff(found) <= (documented / 4).max(3)
}

/// Puts a text between the markers of a block.
pub fn write(page: &str, name: &str, text: &str) {
    let _alone = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let Block { name, command, text: old } = block(page, name);
    let whole = |text: &str| format!("<!-- {name}: {command} -->\n{text}{}", end_of(&name));
    fs::write(root().join(page), read(page).replace(&whole(&old), &whole(text))).unwrap();
}

/// The text as a page shows what a program has printed: tables as they are, all else letter by letter.
pub fn shown(printed: &str) -> String {
    let printed = printed.trim_end();
    if printed.starts_with('|') { format!("{printed}\n") } else { format!("```text\n{printed}\n```\n") }
}

fn end_of(name: &str) -> String {
    format!("<!-- end of {name} -->")
}

fn read(page: &str) -> String {
    let path = root().join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::are_near;

    #[test]
    fn counts_may_differ_by_a_quarter_and_words_not_at_all() {
        let line = "270 transitions in 297 frames, 0 went wrong";
        assert!(are_near(line, "268 transitions in 320 frames, 0 went wrong"));
        assert!(!are_near(line, "270 transitions in 380 frames, 0 went wrong"));
        assert!(!are_near(line, "270 transitions of 297 frames, 0 went wrong"));
        let row = "| one tool | 222 | 0 | damage at 17 |";
        assert!(are_near(row, "| one tool | 226 | 1 | nothing |"));
        assert!(!are_near(row, "| two tools | 222 | 0 | damage at 17 |"));
        assert!(!are_near(row, "| one tool | 422 | 0 | damage at 17 |"));
        assert!(!are_near(row, "| one tool | 222 | 0 |"));
    }
}
