//! What may differ between a recorded run and its replay without being a difference: the workspace, the run's
//! id and the session's key.
//!
//! Owns the words that stand for them. Nothing else is forgiven: the time that a tool tells, for example, is
//! a difference.

use serde_json::Value;

use super::RunNames;

/// Names of the two runs, for which words stand.
#[derive(Clone, Debug)]
pub(super) struct Neutral {
    /// Found anywhere in a text; longer ones first.
    names: Vec<(String, &'static str)>,
    /// Any word can be the key of a session, so only a text that is nothing else is one.
    sessions: [String; 2],
}

impl Neutral {
    /// The names of a run and its replay.
    pub(super) fn new(runs: [&RunNames; 2]) -> Self {
        let places = runs.map(|run| (run.workspace.trim_end_matches('/').to_owned(), "{{workspace}}"));
        let ids = runs.map(|run| (run.id.clone(), "{{run}}"));
        let mut names: Vec<_> = places.into_iter().chain(ids).filter(|(name, _)| !name.is_empty()).collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self { names, sessions: runs.map(|run| run.session.clone()) }
    }

    /// The value with words in place of names, in each of its texts.
    pub(super) fn of(&self, value: &mut Value) {
        match value {
            Value::String(text) if !text.is_empty() && self.sessions.contains(text) => {
                *text = "{{session}}".to_owned();
            }
            Value::String(text) => {
                for (name, word) in &self.names {
                    if text.contains(name.as_str()) {
                        *text = replaced(text, name, word);
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.of(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.of(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// `text` with `word` for each `name` that is not the beginning of a longer one.
fn replaced(text: &str, name: &str, word: &str) -> String {
    let is_longer = |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-');
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(name) {
        out.push_str(before);
        out.push_str(if is_longer(after) { name } else { word });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn neutral(runs: [[&str; 3]; 2]) -> Neutral {
        let [one, other] = runs.map(|names| {
            let [id, session, workspace] = names.map(str::to_owned);
            RunNames { id, session, workspace }
        });
        Neutral::new([&one, &other])
    }

    #[test]
    fn workspace_run_and_session_have_words_in_every_text() {
        let neutral = neutral([["0011", "s", "/tmp/a/"], ["2233", "2233", "/tmp/a/b"]]);
        let mut value = json!({
            "/tmp/a": ["in /tmp/a.", { "x": "/tmp/a/b/c /tmp/ab /tmp/a" }], "n": 0, "r": "2233-1 0011",
            "k": ["s", "2233", "s 2233"],
        });
        neutral.of(&mut value);
        assert_eq!(
            value,
            json!({
                "/tmp/a": ["in {{workspace}}.", { "x": "{{workspace}}/c /tmp/ab {{workspace}}" }],
                "n": 0, "r": "2233-1 {{run}}",
                "k": ["{{session}}", "{{session}}", "s {{run}}"],
            })
        );
    }

    #[test]
    fn a_root_as_workspace_is_no_name() {
        let mut value = json!("/usr/bin");
        neutral([["", "", "/"], ["", "", ""]]).of(&mut value);
        assert_eq!(value, json!("/usr/bin"));
    }
}
