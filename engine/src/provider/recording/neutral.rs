//! What may differ between a recorded run and its replay without being a difference: the workspace and the run's id.
//!
//! Owns the words that stand for them. Nothing else is forgiven: the time that a tool tells, for example, is a difference.

use serde_json::Value;

/// Names, each with the word that stands for it; longer ones first.
#[derive(Clone, Debug)]
pub(super) struct Neutral(Vec<(String, &'static str)>);

impl Neutral {
    /// The workspaces and the ids of a run and its replay.
    pub(super) fn new(workspaces: [&str; 2], runs: [&str; 2]) -> Self {
        let places = workspaces.map(|path| (path.trim_end_matches('/').to_owned(), "{{workspace}}"));
        let runs = runs.map(|run| (run.to_owned(), "{{run}}"));
        let mut names: Vec<_> = places.into_iter().chain(runs).filter(|(name, _)| !name.is_empty()).collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self(names)
    }

    /// The value with words in place of names, in each of its texts.
    pub(super) fn of(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                for (name, word) in &self.0 {
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

    #[test]
    fn workspace_and_run_have_words_in_every_text() {
        let neutral = Neutral::new(["/tmp/a/", "/tmp/a/b"], ["0011", "2233"]);
        let mut value = json!({ "/tmp/a": ["in /tmp/a.", { "x": "/tmp/a/b/c /tmp/ab /tmp/a" }], "n": 0, "r": "2233-1 0011" });
        neutral.of(&mut value);
        assert_eq!(
            value,
            json!({
                "/tmp/a": ["in {{workspace}}.", { "x": "{{workspace}}/c /tmp/ab {{workspace}}" }],
                "n": 0, "r": "2233-1 {{run}}",
            })
        );
    }

    #[test]
    fn a_root_as_workspace_is_no_name() {
        let mut value = json!("/usr/bin");
        Neutral::new(["/", ""], ["", ""]).of(&mut value);
        assert_eq!(value, json!("/usr/bin"));
    }
}
