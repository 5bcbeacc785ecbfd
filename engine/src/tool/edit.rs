//! The tool `edit`: replaces texts that occur exactly once in a file.
//!
//! Owns how a text is found and put back. It must never guess which occurrence was meant, and never change a
//! byte outside of the texts that it replaces: line endings and a byte order mark stay.

use std::io::Read as _;
use std::ops::Range;

use async_trait::async_trait;
use model::ToolResult;
use model::input::RecoveryClass;
use serde::Deserialize;
use serde_json::{Value, json};

use super::blocking::{arguments, blocking};
use super::diff::{Splice, diff, spliced};
use super::durable::{self, Change, Disk, Door, Site, Snapshot};
use super::output::cut;
use super::workspace::{Target, Workspace, shown};
use super::{CallContext, Execution, Preparation, Probe, Tool, ToolSpec};

/// The largest file that is edited.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// The most bytes of the diff in the details.
const DIFF_BYTES_MAX: usize = 16 << 10;

/// The most lines that an error text names.
const LINES_NAMED_MAX: usize = 5;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// The tool `edit`.
pub(super) struct Edit {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Args {
    path: String,
    edits: Vec<Replacement>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Replacement {
    old_text: String,
    new_text: String,
}

impl Edit {
    /// The tool.
    pub(super) fn new() -> Self {
        let replacement = json!({
            "type": "object",
            "properties": {
                "oldText": {"type": "string", "description": "Text to replace; it must occur exactly once"},
                "newText": {"type": "string", "description": "Text to put in its place"},
            },
            "required": ["oldText", "newText"],
        });
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File, relative to the workspace or absolute"},
                "edits": {
                    "type": "array",
                    "description": "Replacements, each matched against the file as it is; none overlap",
                    "items": replacement,
                    "minItems": 1,
                },
            },
            "required": ["path", "edits"],
        });
        let description = "Edit a file by replacing exact texts, each of which must occur exactly once. \
                           One replacement may also be given as oldText and newText beside path.";
        let spec = ToolSpec::new("edit", description, parameters).class(RecoveryClass::Probe);
        // One after another: each must see the file that the one before left.
        Self { spec: ToolSpec { execution: Execution::Sequential, ..spec } }
    }
}

#[async_trait]
impl Tool for Edit {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// A replacement beside `path` becomes the first of the list.
    fn prepare(&self, mut args: Value) -> Result<Preparation, String> {
        let Some(fields) = args.as_object_mut() else { return Ok(Preparation::Args(args)) };
        if !fields.contains_key("oldText") && !fields.contains_key("newText") {
            return Ok(Preparation::Args(args));
        }
        if fields.contains_key("edits") {
            return Err("give either edits or oldText and newText, not both".to_owned());
        }
        let mut replacement = serde_json::Map::new();
        for name in ["oldText", "newText"] {
            replacement.extend(fields.shift_remove_entry(name));
        }
        fields.insert("edits".to_owned(), json!([replacement]));
        Ok(Preparation::Args(args))
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        blocking(call, |call| edit(&Disk, call)).await
    }

    async fn probe(&self, call: &CallContext) -> Probe {
        durable::probe(call).await
    }
}

pub(super) fn edit(door: &impl Door, call: &CallContext) -> Result<ToolResult, String> {
    let args: Args = arguments(call)?;
    let place = Workspace::open(&call.workspace)?.locate(&args.path)?;
    let path = shown(place.path());
    match place.target() {
        Target::Directory => return Err(format!("`{path}` is a directory; name a file")),
        Target::Missing(_) => return Err(format!("`{path}` does not exist; use write to make it")),
        Target::Entry(_) => {}
    }
    let cannot = |error: std::io::Error| format!("cannot edit `{path}`: {error}");
    let file = place.open_file().map_err(cannot)?;
    let mut bytes = Vec::new();
    (&file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("`{path}` has more than the {FILE_BYTES_MAX} bytes that edit takes"));
    }
    let before = Snapshot::with_content(&file, &bytes).map_err(cannot)?;
    let old =
        String::from_utf8(bytes).map_err(|_| format!("`{path}` is not UTF-8 text; edit takes text only"))?;
    let splices = splices(&old, &args.edits).map_err(|refusal| format!("`{path}`: {refusal}"))?;
    let new = spliced(&old, 0..old.len(), &splices);
    let is_changed = new != old;
    let text = match splices.len() {
        _ if !is_changed => format!("`{path}` was not changed: the new text is the old text"),
        1 => format!("edited `{path}` (1 replacement)"),
        count => format!("edited `{path}` ({count} replacements)"),
    };
    let details = json!({ "changed": is_changed, "diff": cut(&diff(&path, &old, &splices), DIFF_BYTES_MAX) });
    let result = ToolResult::text(text).with_details(&details);
    let change = Change { place, before: Some(before), after: new.as_bytes(), result };
    durable::replace(door, &Site::of(call), change)
}

/// Where each replacement goes in `old`, in the order of the file. `Err` says what is wrong with them.
fn splices(old: &str, replacements: &[Replacement]) -> Result<Vec<Splice>, String> {
    let text = Unified::new(old);
    let mut splices = Vec::new();
    for (index, replacement) in replacements.iter().enumerate() {
        let name = match replacements.len() {
            1 => "oldText".to_owned(),
            _ => format!("oldText of edit {}", index + 1),
        };
        let range = text.find_once(&replacement.old_text).map_err(|refusal| format!("{name} {refusal}"))?;
        splices.push(Splice { range, text: text.with_its_line_endings(&replacement.new_text) });
    }
    splices.sort_by_key(|splice| splice.range.start);
    let overlap = splices.windows(2).any(|pair| matches!(pair, [a, b] if b.range.start < a.range.end));
    if overlap {
        return Err("two of the edits overlap; join them into one".to_owned());
    }
    Ok(splices)
}

/// A text with `\n` for every `\r\n`, which knows where each of its bytes was.
struct Unified {
    text: String,
    /// Where in `text` a `\n` lost its `\r`.
    shortened: Vec<usize>,
    is_crlf: bool,
}

impl Unified {
    fn new(original: &str) -> Self {
        let mut text = String::with_capacity(original.len());
        let mut shortened = Vec::new();
        for line in original.split_inclusive('\n') {
            match line.strip_suffix("\r\n") {
                Some(start) => {
                    text.push_str(start);
                    shortened.push(text.len());
                    text.push('\n');
                }
                None => text.push_str(line),
            }
        }
        let is_crlf = shortened.first().is_some_and(|&first| text.find('\n') == Some(first));
        Self { text, shortened, is_crlf }
    }

    /// Where in the original the only occurrence of `wanted` is.
    fn find_once(&self, wanted: &str) -> Result<Range<usize>, String> {
        let wanted = wanted.replace("\r\n", "\n");
        let wanted = wanted.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&wanted);
        if wanted.is_empty() {
            return Err("is empty; name the text to replace, or use write for a whole file".to_owned());
        }
        let found = self.occurrences(wanted);
        match found.as_slice() {
            [] => Err("was not found; it must match the file exactly, white space included; read it again"
                .to_owned()),
            [start] => Ok(self.original(*start)..self.original(start + wanted.len())),
            [_, _, ..] => {
                let named = found.iter().take(LINES_NAMED_MAX).map(|&at| self.line(at).to_string());
                let named: Vec<String> = named.collect();
                let more = if found.len() > named.len() { ", …" } else { "" };
                Err(format!(
                    "occurs {} times (lines {}{more}); add lines around it until it occurs once",
                    found.len(),
                    named.join(", "),
                ))
            }
        }
    }

    /// Where `wanted` starts, also where it overlaps itself.
    fn occurrences(&self, wanted: &str) -> Vec<usize> {
        let step = wanted.chars().next().map_or(1, char::len_utf8);
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(at) = self.text.get(from..).and_then(|rest| rest.find(wanted)) {
            found.push(from + at);
            from += at + step;
        }
        found
    }

    fn original(&self, at: usize) -> usize {
        at + self.shortened.partition_point(|&shortened| shortened < at)
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|&byte| byte == b'\n').count()
    }

    fn with_its_line_endings(&self, text: &str) -> String {
        let text = text.replace("\r\n", "\n");
        if self.is_crlf { text.replace('\n', "\r\n") } else { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn what_is_found_is_where_it_was(
            original in "(a|b|\n|\r\n|\r|é){0,30}",
            from in 0..30_usize,
            length in 1..8_usize,
        ) {
            let text = Unified::new(&original);
            let wanted: String = text.text.chars().skip(from).take(length).collect();
            if let Ok(range) = text.find_once(&wanted) {
                assert_eq!(original[range].replace("\r\n", "\n"), wanted.replace("\r\n", "\n"));
            }
        }
    }
}
