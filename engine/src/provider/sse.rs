//! Server-sent events, from bytes.
//!
//! Owns lines, fields and their limits: memory is bounded whatever a server sends. It must never look into an
//! event's data, nor repair it: bytes that are not UTF-8 would become another text than the one that was paid
//! for.

/// The most bytes of one event, its unfinished line included. The last event of a response may repeat all of
/// it.
pub(super) const EVENT_BYTES_MAX: usize = 4 << 20;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Its name; empty if it has none.
    pub(super) name: String,
    /// Its data lines, joined by newlines; empty for an event without data.
    pub(super) data: String,
}

/// Why bytes are no events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("an event of more than {EVENT_BYTES_MAX} bytes")]
    TooLong,
    #[error("an event that is not UTF-8")]
    NotUtf8,
}

/// Cuts bytes into events, wherever the chunks of a connection begin and end.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The line that has not ended yet.
    line: Vec<u8>,
    name: Vec<u8>,
    /// Each data line with a newline after it.
    data: Vec<u8>,
    /// A line ended with a carriage return, to which a newline that comes next belongs.
    is_after_return: bool,
    has_begun: bool,
    /// Bytes up to the newest end of a line, and up to the newest end of an event.
    lines: u64,
    whole: u64,
}

impl Events {
    /// Reads on in another connection, behind the newest whole event.
    pub(super) fn rejoin(&mut self) {
        *self = Self { lines: self.whole, whole: self.whole, ..Self::default() };
    }

    /// Bytes up to the end of the newest whole event.
    pub(super) fn whole(&self) -> u64 {
        self.whole
    }

    /// Takes in the next bytes; the events that end in them go to `events`.
    pub(super) fn push(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) -> Result<(), Malformed> {
        if std::mem::take(&mut self.is_after_return)
            && let Some(rest) = bytes.strip_prefix(b"\n")
        {
            self.lines += 1;
            bytes = rest;
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, rest) = bytes.split_at(end);
            self.keep(line)?;
            let line = std::mem::take(&mut self.line);
            let is_blank = line.is_empty();
            self.lines += line.len() as u64 + if rest.starts_with(b"\r\n") { 2 } else { 1 };
            events.extend(self.end_line(&line)?);
            if is_blank {
                self.whole = self.lines;
            }
            // The allocation serves the next line.
            self.line = line;
            self.line.clear();
            bytes = match rest {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.is_after_return = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
        }
        self.keep(bytes)
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), Malformed> {
        let held = self.line.len() + self.name.len() + self.data.len();
        if held.saturating_add(part.len()) > EVENT_BYTES_MAX {
            return Err(Malformed::TooLong);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn end_line(&mut self, mut line: &[u8]) -> Result<Option<Event>, Malformed> {
        if !std::mem::replace(&mut self.has_begun, true) {
            line = line.strip_prefix(BOM).unwrap_or(line);
        }
        if line.is_empty() {
            return self.end_event();
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (field, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => self.name = value.to_vec(),
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            // A comment, `id`, `retry`, or a field of somebody's own.
            _ => {}
        }
        Ok(None)
    }

    fn end_event(&mut self) -> Result<Option<Event>, Malformed> {
        let (name, mut data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
        if data.pop().is_none() && name.is_empty() {
            return Ok(None);
        }
        let text = |bytes| String::from_utf8(bytes).map_err(|_| Malformed::NotUtf8);
        Ok(Some(Event { name: text(name)?, data: text(data)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&[u8]]) -> Result<Vec<(String, String)>, Malformed> {
        let (mut parser, mut events) = (Events::default(), Vec::new());
        for chunk in chunks {
            parser.push(chunk, &mut events)?;
        }
        Ok(events.into_iter().map(|event| (event.name, event.data)).collect())
    }

    fn pair(name: &str, data: &str) -> (String, String) {
        (name.to_owned(), data.to_owned())
    }

    const STREAM: &str = "\u{feff}event: a\ndata: 1\r\n\r\n: comment\rdata:2\rdata:  3 \r\rid: 7\nretry: 1\n\
                          data\n\nevent: only\n\ndata: żółć\n\ndata: unfinished";

    #[test]
    fn every_field_and_line_end_is_read_as_the_standard_says() {
        let expected =
            vec![pair("a", "1"), pair("", "2\n 3 "), pair("", ""), pair("only", ""), pair("", "żółć")];
        assert_eq!(events(&[STREAM.as_bytes()]), Ok(expected));
    }

    #[test]
    fn it_does_not_matter_where_the_bytes_are_cut() {
        let whole = events(&[STREAM.as_bytes()]);
        for at in 0..STREAM.len() {
            let (before, after) = STREAM.as_bytes().split_at(at);
            assert_eq!(events(&[before, after]), whole, "cut at {at}");
        }
        let single: Vec<&[u8]> = STREAM.as_bytes().chunks(1).collect();
        assert_eq!(events(&single), whole);
    }

    #[test]
    fn an_event_is_bounded_and_is_text() {
        let piece = vec![b'x'; 1 << 20];
        let mut long: Vec<&[u8]> = vec![b"data: "];
        long.extend(std::iter::repeat_n(piece.as_slice(), 5));
        assert_eq!(events(&long), Err(Malformed::TooLong), "one endless line");
        let line = [b"data: ".as_slice(), &piece, b"\n"].concat();
        assert_eq!(events(&[line.as_slice(); 5]), Err(Malformed::TooLong), "endless lines of one event");
        let comments = [b":".as_slice(), &piece, b"\n"].concat();
        assert_eq!(events(&[comments.as_slice(); 9]), Ok(vec![]), "comments are not kept");
        assert_eq!(events(&[b"data: \xff\n\n"]), Err(Malformed::NotUtf8));
    }
}
