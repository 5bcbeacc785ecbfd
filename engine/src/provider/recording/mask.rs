//! Covers a key in bytes that arrive in pieces.
//!
//! Owns what may be written of them. Nothing moves: a key is replaced by as many stars, and every other byte
//! stays.

use crate::provider::secret::Secret;

/// Stands for each byte of a key.
const COVER: u8 = b'*';

/// Covers one key; without one everything stays.
#[derive(Default)]
pub(super) struct Mask {
    key: Vec<u8>,
    /// The end of what arrived, as long as it may be the beginning of the key.
    held: Vec<u8>,
}

impl Mask {
    pub(super) fn of(key: Option<&Secret>) -> Self {
        let key = key.filter(|key| key.is_distinct()).map(|key| key.reveal().as_bytes().to_vec());
        Self { key: key.unwrap_or_default(), held: Vec::new() }
    }

    /// What can be written after these bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        let Some(last) = self.key.len().checked_sub(1) else { return std::mem::take(&mut self.held) };
        let mut at = 0;
        while let Some(found) = self.held.get(at..).and_then(|rest| position(rest, &self.key)) {
            let key = at + found..at + found + self.key.len();
            at = key.end;
            self.held.get_mut(key).into_iter().for_each(|key| key.fill(COVER));
        }
        let longest = last.min(self.held.len() - at);
        let is_begun = |len: &usize| self.key.get(..*len).is_some_and(|begun| self.held.ends_with(begun));
        let begun = (0..=longest).rev().find(is_begun).unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - begun);
        std::mem::replace(&mut self.held, kept)
    }

    /// What is left when no more comes.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// A whole text.
    pub(super) fn cover(&self, text: &str) -> String {
        if self.key.is_empty() {
            return text.to_owned();
        }
        let stars = char::from(COVER).to_string().repeat(self.key.len());
        text.replace(&*String::from_utf8_lossy(&self.key), &stars)
    }
}

fn position(bytes: &[u8], key: &[u8]) -> Option<usize> {
    bytes.windows(key.len()).position(|window| window == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(key: &str, pieces: &[&[u8]]) -> String {
        let secret = Secret::new(key);
        let mut mask = Mask::of(Some(&secret));
        let mut out: Vec<u8> = pieces.iter().flat_map(|piece| mask.push(piece)).collect();
        out.extend(mask.rest());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_key_is_covered_wherever_the_pieces_are_cut() {
        let text = b"a sk-sk-123 sk-sk-123sk-sk-123 sk-sk-12";
        let expected = "a ********* ****************** sk-sk-12";
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(covered("sk-sk-123", &pieces), expected, "{first} {second}");
            }
        }
        assert_eq!(Mask::of(Some(&Secret::new("sk-sk-123"))).cover("a sk-sk-123."), "a *********.");
    }

    #[test]
    fn what_is_no_key_stays() {
        assert_eq!(covered("short", &[b"a short ", b"word"]), "a short word");
        let mut mask = Mask::default();
        assert_eq!((mask.push(b"abc"), mask.rest()), (b"abc".to_vec(), vec![]));
    }
}
