//! One canonical form for JSON, hashed as it is written: equal values give equal bytes, different values
//! different ones. Object keys are sorted and numbers are IEEE doubles, so `1`, `1.0` and `1e0` are one
//! number. Keeps nothing.

use std::borrow::Cow;

use serde_json::{Map, Number, Value};

use super::nonce::without_nonces;

/// Which differences between two values count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// All of them: arguments.
    Exact,
    /// Not the ids around wrapped external content, in texts and in keys: results.
    Stable,
    /// As `Stable`, and not what each delivery of a message makes anew: results of sends.
    Delivery,
}

/// Writes values into a hash, each with its type and length in front, so that no two sequences of values run
/// together.
pub(super) struct Canon {
    hasher: blake3::Hasher,
    form: Form,
}

impl Canon {
    pub(super) fn new(form: Form) -> Self {
        Self { hasher: blake3::Hasher::new(), form }
    }

    /// What has been written so far.
    pub(super) fn hasher(&self) -> &blake3::Hasher {
        &self.hasher
    }

    /// A value that is not there, which is not the same as null.
    pub(super) fn absent(&mut self) {
        self.tag(b'a');
    }

    pub(super) fn null(&mut self) {
        self.tag(b'n');
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.tag(if value { b't' } else { b'f' });
    }

    pub(super) fn number(&mut self, value: f64) {
        // Adding zero turns -0 into 0 and changes nothing else.
        self.tag(b'd');
        self.hasher.update(&(value + 0.0).to_bits().to_be_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        let text = self.stable(text);
        self.stable_text(&text);
    }

    pub(super) fn text_or_null(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.null(),
        }
    }

    pub(super) fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.null(),
            Value::Bool(value) => self.bool(*value),
            Value::Number(value) => self.number(double(value)),
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                self.tag(b'[');
                self.length(items.len());
                items.iter().for_each(|item| self.value(item));
            }
            Value::Object(fields) => self.object(fields),
        }
    }

    /// The fields in the order of their normalised, then of their raw keys. Any fixed order serves: sorting
    /// by bytes makes the same objects equal as sorting by UTF-16 units would.
    pub(super) fn object(&mut self, fields: &Map<String, Value>) {
        let is_delivery = self.form == Form::Delivery;
        let mut kept: Vec<(Cow<'_, str>, &String, &Value)> = fields
            .iter()
            .filter(|(key, _)| !(is_delivery && is_made_anew(key, fields)))
            .map(|(key, value)| (self.stable(key), key, value))
            .collect();
        kept.sort_unstable_by(|left, right| (&left.0, left.1).cmp(&(&right.0, right.1)));
        self.tag(b'{');
        self.length(kept.len());
        for (key, _, value) in kept {
            self.stable_text(&key);
            self.value(value);
        }
    }

    fn stable<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.form {
            Form::Exact => Cow::Borrowed(text),
            Form::Stable | Form::Delivery => without_nonces(text),
        }
    }

    fn stable_text(&mut self, text: &str) {
        self.tag(b's');
        self.length(text.len());
        self.hasher.update(text.as_bytes());
    }

    fn tag(&mut self, tag: u8) {
        self.hasher.update(&[tag]);
    }

    fn length(&mut self, length: usize) {
        self.hasher.update(&(length as u64).to_be_bytes());
    }
}

/// The double nearest to `number`; every JSON number has one.
pub(super) fn double(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::INFINITY)
}

/// Whether the field `key` of a send's result differs with every delivery.
fn is_made_anew(key: &str, fields: &Map<String, Value>) -> bool {
    match key {
        "messageId" | "message_id" | "messageIds" | "platformMessageId" | "platformMessageIds" => true,
        "fileId" | "file_id" | "fileKey" | "pollId" | "poll_id" => true,
        "receipt" | "runId" | "idempotencyKey" => true,
        "ts" | "timestamp" | "sentAt" | "deliveredAt" | "createdAt" => true,
        "id" => is_message(fields),
        // Keys are open: any other one says something.
        _ => false,
    }
}

/// Whether an object is a message that was delivered, so that its `id` is the delivery's.
fn is_message(fields: &Map<String, Value>) -> bool {
    let is_text = |key: &str| fields.get(key).is_some_and(Value::is_string);
    is_text("id")
        && is_text("text")
        && (["direction", "senderId", "accountId"].into_iter().any(is_text)
            || fields.get("conversation").is_some_and(Value::is_object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::loops::ResultHash;

    fn hash(form: Form, json: &str) -> ResultHash {
        let mut canon = Canon::new(form);
        canon.value(&serde_json::from_str(json).unwrap());
        ResultHash::of_hasher(canon.hasher())
    }

    #[track_caller]
    fn equal(form: Form, left: &str, right: &str) {
        assert_eq!(hash(form, left), hash(form, right), "{left} {right}");
    }

    #[track_caller]
    fn different(form: Form, left: &str, right: &str) {
        assert_ne!(hash(form, left), hash(form, right), "{left} {right}");
    }

    #[test]
    fn numbers_compare_as_doubles() {
        for (left, right) in [
            ("1", "1.0"),
            ("1", "1e0"),
            ("100", "1e2"),
            ("100", "1E+2"),
            ("0", "-0"),
            ("0", "-0.0"),
            ("9007199254740993", "9007199254740992"),
            ("18446744073709551615", "18446744073709551616"),
            ("-9223372036854775808", "-9223372036854775809"),
            ("0.5", "5e-1"),
        ] {
            equal(Form::Exact, left, right);
        }
        different(Form::Exact, "9007199254740991", "9007199254740992");
        different(Form::Exact, "1.5", "1.25");
        different(Form::Exact, "1", "-1");
        different(Form::Exact, "1", "\"1\"");
    }

    #[test]
    fn order_of_keys_does_not_count_and_order_of_items_does() {
        equal(Form::Exact, r#"{"a":1,"b":{"c":2,"d":3}}"#, r#"{"b":{"d":3,"c":2},"a":1}"#);
        different(Form::Exact, "[1,2]", "[2,1]");
    }

    #[test]
    fn values_of_different_shape_differ() {
        let distinct =
            ["null", "false", "true", "0", "\"\"", "[]", "{}", "[null]", "[[]]", "{\"\":null}", "\"null\""];
        for (at, left) in distinct.iter().enumerate() {
            for right in &distinct[at + 1..] {
                different(Form::Exact, left, right);
            }
        }
        different(Form::Exact, r#"{"a":null}"#, "{}");
        different(Form::Exact, r#"["ab","c"]"#, r#"["a","bc"]"#);
        different(Form::Exact, "[[1],2]", "[[1,2]]");
        different(Form::Exact, r#"{"a":{"b":1}}"#, r#"{"a":{},"b":1}"#);
        equal(Form::Exact, r#""\u0041""#, r#""A""#);
    }

    /// Text in a wrapper with this id.
    fn wrapped(id: u8, text: &str) -> String {
        let id = format!("EXTERNAL_UNTRUSTED_CONTENT id=\"{id:016x}\">>>");
        format!("<<<{id}{text}<<<END_{id}")
    }

    #[test]
    fn nonces_count_in_arguments_and_not_in_results() {
        let page = |id| serde_json::json!({ "page": [wrapped(id, "x")], wrapped(id, "k"): 1 }).to_string();
        let (left, right) = (page(1), page(2));
        different(Form::Exact, &left, &right);
        equal(Form::Stable, &left, &right);
        equal(Form::Delivery, &left, &right);
    }

    #[test]
    fn keys_that_become_equal_stay_two_fields() {
        let key = |id| wrapped(id, "k");
        let object = |ids: [u8; 2], values: [u8; 2]| {
            serde_json::json!({ key(ids[0]): values[0], key(ids[1]): values[1] }).to_string()
        };
        equal(Form::Stable, &object([1, 2], [7, 8]), &object([3, 4], [7, 8]));
        equal(Form::Stable, &object([1, 2], [7, 8]), &object([2, 1], [8, 7]));
        different(Form::Stable, &object([1, 2], [7, 8]), &object([1, 2], [8, 7]));
        different(Form::Stable, &object([1, 2], [7, 7]), &serde_json::json!({ key(1): 7 }).to_string());
    }

    #[test]
    fn a_delivery_ignores_what_is_made_anew_at_any_depth() {
        for key in [
            "messageId",
            "message_id",
            "messageIds",
            "platformMessageId",
            "platformMessageIds",
            "fileId",
            "file_id",
            "fileKey",
            "pollId",
            "poll_id",
            "receipt",
            "runId",
            "idempotencyKey",
            "ts",
            "timestamp",
            "sentAt",
            "deliveredAt",
            "createdAt",
        ] {
            let nested =
                |value: &str| format!(r#"{{"list":[{{"{key}":{value},"keep":1}}],"{key}":{value}}}"#);
            equal(Form::Delivery, &nested("1"), &nested("{\"x\":2}"));
            equal(Form::Delivery, &nested("1"), r#"{"list":[{"keep":1}]}"#);
            different(Form::Stable, &nested("1"), &nested("2"));
        }
        for key in ["messageid", "message", "file", "id", "requestId", "Ts"] {
            different(Form::Delivery, &format!(r#"{{"{key}":1}}"#), &format!(r#"{{"{key}":2}}"#));
        }
    }

    #[test]
    fn the_id_of_a_delivered_message_is_made_anew() {
        let message = |id: &str, rest: &str| format!(r#"{{"m":{{"id":{id}{rest}}}}}"#);
        for rest in [
            r#","text":"x","direction":"out""#,
            r#","text":"x","senderId":"s""#,
            r#","text":"x","accountId":"s""#,
            r#","text":"x","conversation":{}"#,
        ] {
            equal(Form::Delivery, &message("\"1\"", rest), &message("\"2\"", rest));
            different(Form::Delivery, &message("1", rest), &message("2", rest));
        }
        for rest in [
            r#","text":"x""#,
            r#","direction":"out""#,
            r#","text":1,"direction":"out""#,
            r#","text":"x","direction":1"#,
            r#","text":"x","conversation":[]"#,
            r#","text":"x","conversation":"c""#,
        ] {
            different(Form::Delivery, &message("\"1\"", rest), &message("\"2\"", rest));
        }
    }
}
