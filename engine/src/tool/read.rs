//! The tool `read`: shows a text file, or a part of it, or a small picture.
//!
//! Owns what of a file is shown. It must never hold more of a file in memory than it shows.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _};

use async_trait::async_trait;
use model::ToolResult;
use model::input::RecoveryClass;
use model::message::Block;
use serde::Deserialize;
use serde_json::json;

use super::blocking::{arguments, blocking, refuse_if_cancelled};
use super::output::head;
use super::workspace::{Target, Workspace, shown};
use super::{CallContext, Tool, ToolSpec};

/// The lines that are shown when the call names no limit.
const LINES_DEFAULT: u64 = 2000;

/// The largest picture that is shown.
const IMAGE_BYTES_MAX: u64 = 5 << 20;

/// The bytes at the start of a file that say whether it is text.
const SNIFFED_BYTES: u64 = 8 << 10;

/// What the note about the rest of a file may take of the output.
const NOTE_BYTES_MAX: usize = 200;

/// The tool `read`.
pub(super) struct Read {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Args {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

impl Read {
    /// The tool.
    pub(super) fn new() -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File, relative to the workspace or absolute"},
                "offset": {"type": "integer", "minimum": 1, "description": "First line to show, from 1"},
                "limit": {"type": "integer", "minimum": 1, "description": "Most lines to show; default 2000"},
            },
            "required": ["path"],
        });
        let description = "Read a text file, or a png, jpeg, gif or webp picture of at most 5 MiB. \
                           A long file is shown in parts: go on with offset.";
        Self { spec: ToolSpec::new("read", description, parameters).class(RecoveryClass::ReadOnly) }
    }
}

#[async_trait]
impl Tool for Read {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        blocking(call, read).await
    }
}

fn read(call: &CallContext) -> Result<ToolResult, String> {
    let args: Args = arguments(call)?;
    let place = Workspace::open(&call.workspace)?.locate(&args.path)?;
    let path = shown(place.path());
    match place.target() {
        Target::Directory => return Err(format!("`{path}` is a directory; use ls to see what it holds")),
        Target::Missing(_) => return Err(format!("`{path}` does not exist; use find to look for it")),
        Target::Entry(_) => {}
    }
    let cannot = |error: io::Error| format!("cannot read `{path}`: {error}");
    let mut file = place.open_file().map_err(cannot)?;
    let bytes = file.metadata().map_err(cannot)?.len();
    let mut start = Vec::new();
    (&mut file).take(SNIFFED_BYTES).read_to_end(&mut start).map_err(cannot)?;
    file.rewind().map_err(cannot)?;
    if let Some(media_type) = image_type(&start) {
        return picture(file, &path, bytes, media_type);
    }
    if start.contains(&0) {
        return Err(format!("`{path}` is a binary file of {bytes} bytes; read shows text and pictures"));
    }
    let first = args.offset.unwrap_or(1).max(1);
    let limit = args.limit.unwrap_or(LINES_DEFAULT).max(1);
    let part = Part::read(call, file, first, limit).map_err(|failure| match failure {
        Failure::Cancelled(text) => text,
        Failure::System(error) => cannot(error),
    })?;
    part.result(&path, first)
}

/// The lines of a file that are shown.
struct Part {
    bytes: Vec<u8>,
    /// Whole or cut lines in `bytes`.
    lines: u64,
    /// Lines before the first one that is shown; less than asked for if the file ends earlier.
    skipped: u64,
    /// The last line is not whole.
    is_cut: bool,
    has_more: bool,
}

enum Failure {
    Cancelled(String),
    System(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Part {
    fn read(call: &CallContext, file: File, first: u64, limit: u64) -> Result<Self, Failure> {
        let bytes_max = call.output_bytes_max.saturating_sub(NOTE_BYTES_MAX).max(1);
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut part = Self { bytes: Vec::new(), lines: 0, skipped: 0, is_cut: false, has_more: false };
        while part.skipped + 1 < first && part.skip_line(call, &mut reader)? {}
        if part.skipped + 1 < first {
            return Ok(part);
        }
        while part.lines < limit && !part.is_cut {
            let before = part.bytes.len();
            let room = (bytes_max - before) as u64;
            // One byte more than there is room for tells a line that fits from one that does not.
            (&mut reader).take(room + 1).read_until(b'\n', &mut part.bytes)?;
            let length = part.bytes.len() - before;
            if length == 0 {
                break;
            }
            if length as u64 <= room {
                part.lines += 1;
            } else if part.lines == 0 {
                part.bytes.truncate(bytes_max);
                part.lines = 1;
                part.is_cut = true;
            } else {
                part.bytes.truncate(before);
                part.has_more = true;
                return Ok(part);
            }
        }
        if part.is_cut {
            part.skip_rest_of_line(call, &mut reader)?;
        }
        part.has_more = !reader.fill_buf()?.is_empty();
        Ok(part)
    }

    fn skip_line(&mut self, call: &CallContext, reader: &mut impl BufRead) -> Result<bool, Failure> {
        let is_there = self.skip_rest_of_line(call, reader)?;
        self.skipped += u64::from(is_there);
        Ok(is_there)
    }

    /// Reads on to the next line; false at the end of the file.
    fn skip_rest_of_line(&self, call: &CallContext, reader: &mut impl BufRead) -> Result<bool, Failure> {
        let mut is_there = false;
        loop {
            let buffer = reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(is_there);
            }
            is_there = true;
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let length = end.map_or(buffer.len(), |at| at + 1);
            reader.consume(length);
            if end.is_some() {
                return Ok(true);
            }
            refuse_if_cancelled(call).map_err(Failure::Cancelled)?;
        }
    }

    fn result(self, path: &str, first: u64) -> Result<ToolResult, String> {
        if self.lines == 0 && first > 1 {
            return Err(format!("`{path}` has {} lines; offset {first} is past its end", self.skipped));
        }
        let is_text = std::str::from_utf8(&self.bytes).is_ok();
        let text = String::from_utf8_lossy(&self.bytes);
        // Bytes that are no text grow when they are replaced.
        let text =
            if self.is_cut { head(text.trim_end_matches('\u{fffd}'), self.bytes.len()) } else { &text };
        let text = if first == 1 { text.trim_start_matches('\u{feff}') } else { text };
        let next = first + self.lines;
        let mut notes = Vec::new();
        if self.is_cut {
            notes.push(format!("line {first} is too long to be shown whole"));
        }
        if self.has_more {
            notes.push(format!("lines {first} to {} are shown; continue with offset {next}", next - 1));
        }
        if !is_text && !self.is_cut {
            notes.push("bytes that are not UTF-8 are shown as \u{fffd}".to_owned());
        }
        if notes.is_empty() {
            return Ok(ToolResult::text(text));
        }
        let gap = if text.ends_with('\n') { "\n" } else { "\n\n" };
        Ok(ToolResult::text(format!("{text}{gap}[{}]", notes.join("; "))))
    }
}

fn image_type(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn picture(file: File, path: &str, bytes: u64, media_type: &str) -> Result<ToolResult, String> {
    if bytes > IMAGE_BYTES_MAX {
        return Err(format!(
            "`{path}` is a picture of {bytes} bytes; read shows at most {IMAGE_BYTES_MAX}, so make it smaller"
        ));
    }
    let mut content = Vec::new();
    file.take(IMAGE_BYTES_MAX)
        .read_to_end(&mut content)
        .map_err(|error| format!("cannot read `{path}`: {error}"))?;
    let image = Block::Image { data: base64(&content), media_type: media_type.to_owned() };
    let text = Block::Text(format!("`{path}` ({media_type}, {bytes} bytes)"));
    Ok(ToolResult { content: vec![text, image], ..ToolResult::default() })
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = bytes.chunks(3).flat_map(|chunk| {
        let group =
            chunk.iter().zip([16, 8, 0]).fold(0, |group, (&byte, shift)| group | u32::from(byte) << shift);
        let digit = move |at: usize| char::from(DIGITS[(group >> (18 - 6 * at)) as usize & 63]);
        (0..4).map(move |at| if at <= chunk.len() { digit(at) } else { '=' })
    });
    digits.collect()
}
