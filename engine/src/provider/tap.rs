//! Who sees the raw bytes of a call.
//!
//! Owns the writing of the spool while a response arrives. A disk that fails costs the spool, never the answer.

use super::http::{Headers, Tap};
use super::secret::Secret;
use crate::spool::{Spool, Writing};

/// Keeps a response in its spool.
pub(super) struct SpoolTap {
    spool: Spool,
    /// Tokens of the request, by estimate.
    sent: u64,
    /// None before the head has arrived, and after the disk has failed.
    writing: Option<Writing>,
    /// The status of a response that a dead engine has kept, as long as it was not found again.
    kept: Option<u16>,
}

impl SpoolTap {
    pub(super) fn new(spool: Spool, sent: u64) -> Self {
        Self { spool, sent, writing: None, kept: None }
    }

    /// Goes on with what a dead engine has kept of a response, once it is found again. Until then nothing is touched.
    pub(super) fn kept(spool: Spool, sent: u64, status: u16) -> Self {
        Self { kept: Some(status), ..Self::new(spool, sent) }
    }

    fn give_up(&mut self, error: &std::io::Error) {
        self.writing = None;
        let path = self.spool.path().display();
        tracing::warn!(%path, %error, "a response is not kept while it arrives: after a crash it is asked for again");
    }
}

impl Tap for SpoolTap {
    fn on_head(&mut self, status: u16, _headers: &Headers) {
        match self.spool.begin(self.sent, status) {
            Ok(writing) => self.writing = Some(writing),
            Err(error) => self.give_up(&error),
        }
    }

    fn on_bytes(&mut self, bytes: &[u8]) {
        let appended = self.writing.as_mut().map_or(Ok(()), |writing| writing.append(bytes));
        if let Err(error) = appended {
            self.give_up(&error);
        }
    }

    /// Half an event would spoil what comes behind it. A crash right after the cut finds a shorter beginning.
    fn on_rejoin(&mut self, whole: u64) {
        if let Some(status) = self.kept.take() {
            match self.spool.reopen(self.sent, status) {
                Ok(writing) => self.writing = Some(writing),
                Err(error) => return self.give_up(&error),
            }
        }
        let cut = self.writing.as_mut().map_or(Ok(()), |writing| writing.cut(whole));
        if let Err(error) = cut {
            self.give_up(&error);
        }
    }
}

/// Several taps see everything, in their order.
impl Tap for Vec<Box<dyn Tap>> {
    fn on_send(&mut self, body: &[u8], key: Option<&Secret>) {
        self.iter_mut().for_each(|tap| tap.on_send(body, key));
    }

    fn on_head(&mut self, status: u16, headers: &Headers) {
        self.iter_mut().for_each(|tap| tap.on_head(status, headers));
    }

    fn on_bytes(&mut self, bytes: &[u8]) {
        self.iter_mut().for_each(|tap| tap.on_bytes(bytes));
    }

    fn on_rejoin(&mut self, whole: u64) {
        self.iter_mut().for_each(|tap| tap.on_rejoin(whole));
    }
}
