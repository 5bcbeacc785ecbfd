//! The tool `grep`: finds lines by a pattern.
//!
//! Owns what is a match and how it is shown. It must never run a pattern whose time is not linear, and never
//! open a file by a path that could lead outside of the workspace.

use std::collections::VecDeque;
use std::io::Read as _;
use std::path::Path;

use async_trait::async_trait;
use globset::{GlobBuilder, GlobMatcher};
use model::ToolResult;
use model::input::RecoveryClass;
use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::json;

use super::blocking::{arguments, blocking, refuse_if_cancelled};
use super::output::head;
use super::walk::{Go, walk};
use super::workspace::{Target, Workspace, shown};
use super::{CallContext, Tool, ToolSpec};

/// The matching lines that are shown when the call names no limit.
const LIMIT_DEFAULT: usize = 100;

/// The largest file that is searched.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// The bytes of a line that are shown.
const LINE_BYTES_MAX: usize = 500;

/// The bytes that a compiled pattern may take.
const PATTERN_BYTES_MAX: usize = 4 << 20;

/// The bytes at the start of a file that say whether it is text.
const SNIFFED_BYTES: usize = 8 << 10;

/// The most lines around a match that are shown.
const CONTEXT_MAX: usize = 100;

/// The tool `grep`.
pub(super) struct Grep {
    spec: ToolSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Args {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    #[serde(default)]
    ignore_case: bool,
    #[serde(default)]
    literal: bool,
    #[serde(default)]
    context: usize,
    limit: Option<usize>,
}

impl Grep {
    /// The tool.
    pub(super) fn new() -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "Regular expression, matched line by line"},
                "path": {"type": "string", "description": "Where to search; default the workspace"},
                "glob": {"type": "string", "description": "Only these files, such as *.rs or src/**/*.rs"},
                "ignoreCase": {"type": "boolean", "description": "Upper and lower case are the same"},
                "literal": {"type": "boolean", "description": "The pattern is plain text"},
                "context": {"type": "integer", "minimum": 0, "description": "Lines to show around a match"},
                "limit": {"type": "integer", "minimum": 1, "description": "Most matches; default 100"},
            },
            "required": ["pattern"],
        });
        let description = "Search text files for a pattern, without what .gitignore names. \
                           Matches are shown as path:line: text, lines around them as path-line- text.";
        Self { spec: ToolSpec::new("grep", description, parameters).class(RecoveryClass::ReadOnly) }
    }
}

#[async_trait]
impl Tool for Grep {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        blocking(call, grep).await
    }
}

fn grep(call: &CallContext) -> Result<ToolResult, String> {
    let args: Args = arguments(call)?;
    let glob = args.glob.as_deref().map(Glob::new).transpose()?;
    let workspace = Workspace::open(&call.workspace)?;
    let place = workspace.locate(args.path.as_deref().unwrap_or("."))?;
    let mut search = Search::new(call, &workspace, &args)?;
    match place.target() {
        Target::Missing(_) => {
            return Err(format!("`{}` does not exist; use find to look for it", shown(place.path())));
        }
        Target::Entry(_) => search.file(place.path()).map(|_| ())?,
        Target::Directory => walk(call, &workspace, place.path(), |found| {
            let is_wanted = found.is_file && glob.as_ref().is_none_or(|glob| glob.is_match(&found.below));
            if is_wanted { search.file(&found.path) } else { Ok(Go::On) }
        })?,
    }
    Ok(search.result())
}

/// A glob over names, or over paths if it holds a separator.
struct Glob {
    matcher: GlobMatcher,
    by_path: bool,
}

impl Glob {
    fn new(pattern: &str) -> Result<Self, String> {
        let built = GlobBuilder::new(pattern).literal_separator(true).build();
        let glob = built.map_err(|error| format!("glob is not valid: {error}; escape with \\"))?;
        Ok(Self { matcher: glob.compile_matcher(), by_path: pattern.contains('/') })
    }

    fn is_match(&self, path: &Path) -> bool {
        match path.file_name().filter(|_| !self.by_path) {
            Some(name) => self.matcher.is_match(name),
            None => self.matcher.is_match(path),
        }
    }
}

/// A search under way.
struct Search<'a> {
    call: &'a CallContext,
    workspace: &'a Workspace,
    pattern: Regex,
    context: usize,
    limit: usize,
    lines: Vec<String>,
    /// Bytes of `lines`.
    bytes: usize,
    matches: usize,
    is_cut: bool,
    too_large: usize,
}

impl<'a> Search<'a> {
    fn new(call: &'a CallContext, workspace: &'a Workspace, args: &Args) -> Result<Self, String> {
        let pattern = if args.literal { regex::escape(&args.pattern) } else { args.pattern.clone() };
        let pattern = RegexBuilder::new(&pattern)
            .case_insensitive(args.ignore_case)
            .size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(|error| {
                format!("the pattern is not a regular expression: {error}; set literal for plain text")
            })?;
        Ok(Self {
            call,
            workspace,
            pattern,
            context: args.context.min(CONTEXT_MAX),
            limit: args.limit.unwrap_or(LIMIT_DEFAULT),
            lines: Vec::new(),
            bytes: 0,
            matches: 0,
            is_cut: false,
            too_large: 0,
        })
    }

    /// Searches one file. One that cannot be opened, or is not text, has no matches.
    fn file(&mut self, path: &Path) -> Result<Go, String> {
        refuse_if_cancelled(self.call)?;
        let opened =
            self.workspace.locate(path).and_then(|place| place.open_file().map_err(|e| e.to_string()));
        let Ok(file) = opened else { return Ok(Go::On) };
        let mut content = Vec::new();
        if file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).is_err() {
            return Ok(Go::On);
        }
        if content.len() as u64 > FILE_BYTES_MAX {
            self.too_large += 1;
            return Ok(Go::On);
        }
        if content.iter().take(SNIFFED_BYTES).any(|&byte| byte == 0) {
            return Ok(Go::On);
        }
        Ok(self.text(&String::from_utf8_lossy(&content), &path.to_string_lossy()))
    }

    fn text(&mut self, text: &str, name: &str) -> Go {
        let mut before: VecDeque<(usize, &str)> = VecDeque::new();
        let mut after = 0;
        let mut last_shown = None;
        for (number, line) in (1..).zip(text.lines()) {
            if self.pattern.is_match(line) {
                if self.matches >= self.limit || self.bytes > self.call.output_bytes_max {
                    self.is_cut = true;
                    return Go::Stop;
                }
                let first = before.front().map_or(number, |(number, _)| *number);
                let is_apart = last_shown.is_none_or(|last| first > last + 1);
                if self.context > 0 && !self.lines.is_empty() && is_apart {
                    self.show("--".to_owned());
                }
                for (number, line) in before.drain(..) {
                    self.show(format!("{name}-{number}- {}", shortened(line)));
                }
                self.show(format!("{name}:{number}: {}", shortened(line)));
                self.matches += 1;
                last_shown = Some(number);
                after = self.context;
            } else if after > 0 {
                self.show(format!("{name}-{number}- {}", shortened(line)));
                last_shown = Some(number);
                after -= 1;
            } else if self.context > 0 {
                if before.len() == self.context {
                    before.pop_front();
                }
                before.push_back((number, line));
            }
        }
        Go::On
    }

    fn show(&mut self, line: String) {
        self.bytes += line.len() + 1;
        self.lines.push(line);
    }

    fn result(self) -> ToolResult {
        let mut text =
            if self.lines.is_empty() { "[nothing matches]".to_owned() } else { self.lines.join("\n") };
        let mut notes = Vec::new();
        if self.is_cut {
            notes.push(format!(
                "{} matches are shown and there are more; refine pattern or raise limit",
                self.matches
            ));
        }
        if self.too_large > 0 {
            notes.push(format!(
                "{} files of more than {FILE_BYTES_MAX} bytes were not searched",
                self.too_large
            ));
        }
        if !notes.is_empty() {
            text.push_str(&format!("\n\n[{}]", notes.join("; ")));
        }
        ToolResult::text(text)
    }
}

fn shortened(line: &str) -> String {
    let start = head(line, LINE_BYTES_MAX);
    if start.len() == line.len() { line.to_owned() } else { format!("{start}…") }
}
