//! Writing to people and to programs.
//!
//! Owns stdout and what it may hold: colour and tables in a terminal, plain lines in a pipe. It must never panic when a
//! pipe is closed.

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use comfy_table::Table;
use serde_json::Value;

/// The command's output.
pub(crate) struct Output {
    stdout: BufWriter<Stdout>,
    /// A person is looking at it.
    pub(crate) is_terminal: bool,
    /// How words look there.
    pub(crate) style: Style,
}

/// How words look; in a pipe, like themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    has_colour: bool,
}

/// True if colour can be seen there and is wanted (no-color.org).
pub(crate) fn has_colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

impl Output {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        Self { is_terminal: stdout.is_terminal(), style: Style::of(&stdout), stdout: BufWriter::new(stdout) }
    }

    /// One line.
    pub(crate) fn line(&mut self, line: impl Display) -> io::Result<()> {
        writeln!(self.stdout, "{line}")
    }

    /// Text as it is.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        self.stdout.write_all(text.as_bytes())
    }

    /// One JSON value on one line.
    pub(crate) fn json(&mut self, value: &Value) -> io::Result<()> {
        self.line(value)
    }

    /// Rows: a table in a terminal, lines of fields with tabs between them in a pipe.
    pub(crate) fn rows(&mut self, head: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
        if self.is_terminal {
            let (head, rows) = without_empty(head, rows);
            let mut table = Table::new();
            table.load_style(comfy_table::presets::NOTHING).set_header(head).add_rows(rows);
            for line in table.lines() {
                writeln!(self.stdout, "{}", line.trim_end())?;
            }
            return Ok(());
        }
        for row in rows {
            let fields: Vec<String> = row.iter().map(|field| field.replace(['\t', '\n'], " ")).collect();
            writeln!(self.stdout, "{}", fields.join("\t"))?;
        }
        Ok(())
    }

    /// Hands everything over.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }
}

/// The columns in which some row has something.
fn without_empty<'a>(head: &[&'a str], rows: Vec<Vec<String>>) -> (Vec<&'a str>, Vec<Vec<String>>) {
    let is_empty = |text: &String| text.is_empty() || text == "-";
    let is_kept = |at: usize| rows.iter().any(|row| row.get(at).is_some_and(|text| !is_empty(text)));
    let kept: Vec<bool> = (0..head.len()).map(is_kept).collect();
    let keep = |row: Vec<String>| row.into_iter().zip(&kept).filter(|(_, kept)| **kept).map(|(text, _)| text);
    let rows = rows.into_iter().map(|row| keep(row).collect()).collect();
    (head.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(head, _)| *head).collect(), rows)
}

impl Style {
    /// The style for a stream.
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
        Self { has_colour: has_colour(stream) }
    }

    pub(crate) fn dim(self, text: impl Display) -> String {
        self.with("2", text)
    }

    pub(crate) fn bold(self, text: impl Display) -> String {
        self.with("1", text)
    }

    pub(crate) fn good(self, text: impl Display) -> String {
        self.with("32", text)
    }

    pub(crate) fn bad(self, text: impl Display) -> String {
        self.with("31", text)
    }

    pub(crate) fn warn(self, text: impl Display) -> String {
        self.with("33", text)
    }

    /// A status or outcome in its colour.
    pub(crate) fn status(self, name: &str) -> String {
        match name {
            "completed" => self.good(name),
            "failed" | "blocked" | "timed_out" => self.bad(name),
            "parked" => self.warn(name),
            _ => name.to_owned(),
        }
    }

    /// `code` is a parameter of "select graphic rendition" (ECMA-48).
    fn with(self, code: &str, text: impl Display) -> String {
        if self.has_colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}
