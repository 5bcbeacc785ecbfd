//! The cap on what a tool may answer.
//!
//! Owns how text that is too long is cut: head and tail stay, a note in the middle says how much is gone. It
//! must never split a character, and never answer more bytes than it was allowed.

use model::ToolResult;
use model::message::Block;

/// The text, cut in its middle if it is longer than `bytes_max`.
pub fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let longest_note = note(text.len());
    let Some(kept) = bytes_max.checked_sub(longest_note.len()) else {
        return head(text, bytes_max).to_owned();
    };
    let head = head(text, kept / 2);
    let tail = tail(text, kept - kept / 2);
    format!("{head}{}{tail}", note(text.len() - head.len() - tail.len()))
}

/// The result with its texts cut so that together they hold at most `bytes_max`; each keeps its share.
pub fn capped(result: ToolResult, bytes_max: usize) -> ToolResult {
    let total: usize = result.content.iter().map(|block| text_of(block).map_or(0, str::len)).sum();
    if total <= bytes_max {
        return result;
    }
    let share = |length: usize| (bytes_max as u128 * length as u128 / total as u128) as usize;
    let content = result
        .content
        .into_iter()
        .map(|block| match text_of(&block) {
            Some(text) => Block::Text(cut(text, share(text.len()))),
            None => block,
        })
        .collect();
    ToolResult { content, ..result }
}

/// The longest start of `text` that is no longer than `bytes_max`.
pub(super) fn head(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text.get(..end).unwrap_or("")
}

fn tail(text: &str, bytes_max: usize) -> &str {
    let start = text.len().saturating_sub(bytes_max);
    let start = (start..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    text.get(start..).unwrap_or("")
}

fn note(bytes_cut: usize) -> String {
    format!("\n[{bytes_cut} bytes cut here]\n")
}

fn text_of(block: &Block) -> Option<&str> {
    match block {
        Block::Text(text) => Some(text),
        Block::Image { .. } | Block::Thinking { .. } | Block::ToolCall(_) | Block::Other(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_head_and_tail() {
        let text = format!("{}{}", "a".repeat(100), "z".repeat(100));
        assert_eq!(cut(&text, 200), text);
        assert_eq!(cut(&text, 44), "aaaaaaaaaaa\n[178 bytes cut here]\nzzzzzzzzzzz");
        assert_eq!(cut(&text, 10), "aaaaaaaaaa");
    }

    #[test]
    fn no_cap_is_exceeded_and_no_character_split() {
        let text = "é€😀x".repeat(40);
        for bytes_max in 0..=text.len() {
            let out = cut(&text, bytes_max);
            assert!(out.len() <= bytes_max, "{bytes_max}: {}", out.len());
        }
    }

    #[test]
    fn blocks_share_the_cap_and_pictures_are_left_alone() {
        let picture = Block::Image { data: "A".repeat(500), media_type: "image/png".into() };
        let result = ToolResult {
            content: vec![Block::Text("a".repeat(300)), picture.clone(), Block::Text("b".repeat(100))],
            ..ToolResult::default()
        };
        assert_eq!(capped(result.clone(), 400), result);
        let cut_result = capped(result, 200);
        assert_eq!(cut_result.content[0], Block::Text(cut(&"a".repeat(300), 150)));
        assert_eq!(cut_result.content[1], picture);
        assert_eq!(cut_result.content[2], Block::Text(cut(&"b".repeat(100), 50)));
    }
}
