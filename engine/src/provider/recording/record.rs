//! Keeps one call while it is made.
//!
//! Owns the order of its files: the request before it is sent, the response as it arrives. A disk that fails
//! costs the recording, never the answer.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::mask::Mask;
use super::{Place, Recorded, Recording};
use crate::config::Model;
use crate::provider::Request;
use crate::provider::http::{Headers, Tap};
use crate::provider::secret::Secret;

/// Records one call.
pub(in crate::provider) struct RecordTap {
    recording: Arc<Recording>,
    /// The model, by the name that the run asks for.
    name: String,
    model: Model,
    place: Place,
    mask: Mask,
    /// Where the calls of the model are; none before the request was written.
    dir: Option<PathBuf>,
    /// None before the head has arrived, and after the disk has failed.
    response: Option<File>,
    /// Bytes before its body.
    head: u64,
}

impl RecordTap {
    /// None for a call that is not to be recorded.
    pub(in crate::provider) fn of(request: &Request, model: &Model) -> Option<Self> {
        Some(Self {
            recording: Arc::clone(request.recording.as_ref()?),
            name: request.model.clone(),
            model: model.clone(),
            place: Place { turn: request.turn, attempt: request.attempt },
            mask: Mask::default(),
            dir: None,
            response: None,
            head: 0,
        })
    }

    /// Writes, unless something is missing already: what follows a hole is of no use.
    fn write(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) {
        if self.recording.lost().is_some() {
            return;
        }
        if let Err(error) = write(self) {
            self.response = None;
            self.recording.lose(&error);
        }
    }

    /// A call that is made again has no response yet.
    fn keep_request(&mut self, body: &[u8]) -> io::Result<()> {
        let dir = self.recording.open(&self.name, &self.model)?;
        match std::fs::remove_file(self.place.response(&dir)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let body: Value = serde_json::from_slice(body)?;
        std::fs::write(self.place.request(&dir), self.mask.cover(&format!("{body:#}\n")))?;
        self.dir = Some(dir);
        Ok(())
    }

    fn keep_head(&mut self, status: u16, headers: &Headers) -> io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let mut file = File::create(self.place.response(dir))?;
        let head = self.mask.cover(&Recorded::head(status, headers));
        file.write_all(head.as_bytes())?;
        self.head = head.len() as u64;
        self.response = Some(file);
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.response.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    /// Nothing moves under the mask, so the body is as long as it arrived.
    fn cut(&mut self, whole: u64) -> io::Result<()> {
        let Some(file) = &mut self.response else { return Ok(()) };
        file.set_len(self.head + whole)?;
        file.seek(SeekFrom::End(0)).map(|_| ())
    }
}

impl Tap for RecordTap {
    fn on_send(&mut self, body: &[u8], key: Option<&Secret>) {
        self.mask = Mask::of(key);
        self.write(|tap| tap.keep_request(body));
    }

    fn on_head(&mut self, status: u16, headers: &Headers) {
        self.write(|tap| tap.keep_head(status, headers));
    }

    fn on_bytes(&mut self, bytes: &[u8]) {
        let bytes = self.mask.push(bytes);
        self.write(|tap| tap.keep(&bytes));
    }

    fn on_rejoin(&mut self, whole: u64) {
        let rest = self.mask.rest();
        self.write(|tap| tap.keep(&rest));
        self.write(|tap| tap.cut(whole));
    }
}

/// Gives a recording up once the rest of an answer is found that began under another engine: this one has not seen its
/// beginning.
pub(in crate::provider) struct SeamTap(pub(in crate::provider) Arc<Recording>);

impl Tap for SeamTap {
    fn on_head(&mut self, _status: u16, _headers: &Headers) {}

    fn on_bytes(&mut self, _bytes: &[u8]) {}

    fn on_rejoin(&mut self, _whole: u64) {
        let words = "an answer was begun under one engine and ended under another";
        self.0.lose(&io::Error::other(words));
    }
}

impl Drop for RecordTap {
    /// However the call has ended: what was held back is no key.
    fn drop(&mut self) {
        let rest = self.mask.rest();
        self.write(|tap| tap.keep(&rest));
    }
}
