//! Coercion: turns the values that models tend to write into those that a schema asks for.
//!
//! Owns the rules of conversion. It must never change a value that already has one of several declared types,
//! and never refuse one: what cannot be converted stays as it is, for the validator to refuse.

use serde_json::{Map, Number, Value};

/// The most characters of text, counted in UTF-16 as the reference does, that are read as JSON where an array
/// or object is declared.
const JSON_CHARS_MAX: usize = 65_536;

/// The largest integer that every double holds exactly together with its neighbours, 2^53 - 1.
const SAFE_INTEGER_MAX: f64 = 9_007_199_254_740_991.0;

/// Says whether a value is valid under the part of the schema at a pointer such as `#/properties/a/anyOf/0`.
type IsValid<'a> = &'a dyn Fn(&str, &Value) -> bool;

/// The value, coerced to the types that `schema` declares.
pub(super) fn coerced(schema: &Value, value: Value, is_valid: IsValid<'_>) -> Value {
    coerced_at(schema, "#", value, is_valid)
}

fn coerced_at(schema: &Value, at: &str, value: Value, is_valid: IsValid<'_>) -> Value {
    let Value::Object(schema) = schema else { return value };
    let mut value = value;
    for (index, part) in list(schema, "allOf").iter().enumerate() {
        value = coerced_at(part, &format!("{at}/allOf/{index}"), value, is_valid);
    }
    for keyword in ["anyOf", "oneOf"] {
        value = chosen(list(schema, keyword), &format!("{at}/{keyword}"), value, is_valid);
    }
    match converted(&declared(schema), value) {
        Value::Object(fields) => Value::Object(coerced_fields(schema, at, fields, is_valid)),
        Value::Array(items) => Value::Array(coerced_items(schema, at, items, is_valid)),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => scalar,
    }
}

/// The value as the first member takes it, a member for null first if it is null; as it is if none does.
fn chosen(members: &[Value], at: &str, value: Value, is_valid: IsValid<'_>) -> Value {
    if members.is_empty() {
        return value;
    }
    let is_first = |member: &Value| value.is_null() && takes_null(member);
    let numbered = || members.iter().enumerate();
    let ordered = numbered()
        .filter(|(_, member)| is_first(member))
        .chain(numbered().filter(|(_, member)| !is_first(member)));
    ordered
        .map(|(index, member)| (format!("{at}/{index}"), member))
        .map(|(at, member)| (coerced_at(member, &at, value.clone(), is_valid), at))
        .find_map(|(candidate, at)| is_valid(&at, &candidate).then_some(candidate))
        .unwrap_or_else(|| value.clone())
}

fn coerced_fields(
    schema: &Map<String, Value>,
    at: &str,
    fields: Map<String, Value>,
    is_valid: IsValid<'_>,
) -> Map<String, Value> {
    let properties = schema.get("properties").and_then(Value::as_object);
    // A property that a pattern may match is not additional; which ones are, only the validator knows.
    let additional = schema.get("additionalProperties").filter(|_| !schema.contains_key("patternProperties"));
    let coerce = |name: &str, value: Value| match (properties.and_then(|all| all.get(name)), additional) {
        (Some(part), _) => coerced_at(part, &format!("{at}/properties/{}", escaped(name)), value, is_valid),
        (None, Some(part)) => coerced_at(part, &format!("{at}/additionalProperties"), value, is_valid),
        (None, None) => value,
    };
    fields.into_iter().map(|(name, value)| (name.clone(), coerce(&name, value))).collect()
}

fn coerced_items(
    schema: &Map<String, Value>,
    at: &str,
    items: Vec<Value>,
    is_valid: IsValid<'_>,
) -> Vec<Value> {
    let single = schema.get("items").filter(|part| !part.is_array());
    let tuple_keyword = if schema.contains_key("prefixItems") { "prefixItems" } else { "items" };
    let tuple = list(schema, tuple_keyword);
    let coerce = |(index, value): (usize, Value)| match (tuple.get(index), single) {
        (Some(part), _) => coerced_at(part, &format!("{at}/{tuple_keyword}/{index}"), value, is_valid),
        (None, Some(part)) => coerced_at(part, &format!("{at}/items"), value, is_valid),
        (None, None) => value,
    };
    items.into_iter().enumerate().map(coerce).collect()
}

/// The value converted to the first declared type that it can be converted to.
fn converted(types: &[&str], value: Value) -> Value {
    if types.len() > 1 && types.iter().any(|kind| is_of(kind, &value)) {
        return value;
    }
    types.iter().find_map(|kind| convert(kind, &value)).unwrap_or(value)
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

/// A value of type `kind` that stands for `value`; none if there is no such value or it is of that type
/// already.
fn convert(kind: &str, value: &Value) -> Option<Value> {
    match (kind, value) {
        ("number" | "integer", Value::Null) => Some(0.into()),
        ("number" | "integer", Value::Bool(is_true)) => Some(u8::from(*is_true).into()),
        ("number", Value::String(text)) => number(decimal(text)?),
        ("integer", Value::String(text)) => integer(decimal(text)?),
        // `5.0` is an integer of JSON Schema: it is handed on as one.
        ("integer", Value::Number(given)) if given.is_f64() => integer(given.as_f64()?),
        ("boolean", Value::Null) => Some(false.into()),
        ("boolean", Value::String(text)) => text.parse::<bool>().ok().map(Value::Bool),
        ("boolean", Value::Number(given)) => match given.as_f64()? {
            0.0 => Some(false.into()),
            1.0 => Some(true.into()),
            _ => None,
        },
        ("string", Value::Null) => Some("".into()),
        ("string", Value::Bool(is_true)) => Some(is_true.to_string().into()),
        ("string", Value::Number(given)) => Some(number_text(given).into()),
        ("array", Value::String(text)) => parsed(text).filter(Value::is_array),
        ("object", Value::String(text)) => parsed(text).filter(Value::is_object),
        ("null", Value::String(text)) if text.is_empty() => Some(Value::Null),
        ("null", Value::Bool(false)) => Some(Value::Null),
        ("null", Value::Number(given)) if given.as_f64() == Some(0.0) => Some(Value::Null),
        _ => None,
    }
}

/// The number that a text writes in decimal or exponent syntax.
fn decimal(text: &str) -> Option<f64> {
    let text = text.trim();
    let is_syntax = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    text.parse::<f64>().ok().filter(|number| is_syntax && number.is_finite())
}

fn integer(number: f64) -> Option<Value> {
    let is_safe = number.fract() == 0.0 && number.abs() <= SAFE_INTEGER_MAX;
    is_safe.then(|| (number as i64).into())
}

fn number(number: f64) -> Option<Value> {
    integer(number).or_else(|| Number::from_f64(number).map(Value::Number))
}

/// A number as the reference prints it: without a fraction of zero, with an exponent only if very large or
/// small.
fn number_text(given: &Number) -> String {
    match given.as_f64().filter(|_| given.is_f64()) {
        None => given.to_string(),
        Some(0.0) => "0".to_owned(),
        Some(number) if number.abs() >= 1e21 => format!("{number:e}").replace('e', "e+"),
        Some(number) if number.abs() < 1e-6 => format!("{number:e}"),
        Some(number) => number.to_string(),
    }
}

fn parsed(text: &str) -> Option<Value> {
    let is_short = text.encode_utf16().nth(JSON_CHARS_MAX).is_none();
    is_short.then(|| serde_json::from_str(text).ok())?
}

fn declared(schema: &Map<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => Vec::new(),
    }
}

fn takes_null(member: &Value) -> bool {
    member.as_object().is_some_and(|schema| declared(schema).contains(&"null"))
}

fn list<'a>(schema: &'a Map<String, Value>, keyword: &str) -> &'a [Value] {
    schema.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A name as a part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tool::validate::Validator;

    /// What becomes of `value` under `{"type": kind}`; none if it is refused.
    fn of_type(kind: Value, value: Value) -> Option<Value> {
        under(json!({"type": kind}), value)
    }

    fn under(schema: Value, value: Value) -> Option<Value> {
        Validator::new(&schema).unwrap().check("t", &value).ok()
    }

    #[test]
    fn scalars() {
        for (kind, value, expected) in [
            ("number", json!(null), Some(json!(0))),
            ("number", json!(true), Some(json!(1))),
            ("number", json!(false), Some(json!(0))),
            ("number", json!(" 1.5 "), Some(json!(1.5))),
            ("number", json!("-2e3"), Some(json!(-2000))),
            ("number", json!("+.5"), Some(json!(0.5))),
            ("number", json!("1e400"), None),
            ("number", json!("inf"), None),
            ("number", json!("NaN"), None),
            ("number", json!("0x10"), None),
            ("number", json!("1_0"), None),
            ("number", json!(""), None),
            ("number", json!("  "), None),
            ("integer", json!(null), Some(json!(0))),
            ("integer", json!(true), Some(json!(1))),
            ("integer", json!("42"), Some(json!(42))),
            ("integer", json!("4.0"), Some(json!(4))),
            ("integer", json!("1e3"), Some(json!(1000))),
            ("integer", json!("1.5"), None),
            ("integer", json!("9007199254740991"), Some(json!(9_007_199_254_740_991_i64))),
            ("integer", json!("9007199254740992"), None),
            ("integer", json!(5.0), Some(json!(5))),
            ("integer", json!(5.5), None),
            ("boolean", json!(null), Some(json!(false))),
            ("boolean", json!("true"), Some(json!(true))),
            ("boolean", json!("false"), Some(json!(false))),
            ("boolean", json!("True"), None),
            ("boolean", json!(" true"), None),
            ("boolean", json!(1), Some(json!(true))),
            ("boolean", json!(0), Some(json!(false))),
            ("boolean", json!(2), None),
            ("string", json!(null), Some(json!(""))),
            ("string", json!(true), Some(json!("true"))),
            ("string", json!(5), Some(json!("5"))),
            ("string", json!(5.0), Some(json!("5"))),
            ("string", json!(-0.0), Some(json!("0"))),
            ("string", json!(1.25), Some(json!("1.25"))),
            ("string", json!(1e21), Some(json!("1e+21"))),
            ("string", json!(1e20), Some(json!("100000000000000000000"))),
            ("string", json!(1.5e-7), Some(json!("1.5e-7"))),
            ("string", json!(1e-6), Some(json!("0.000001"))),
            ("string", json!([]), None),
            ("null", json!(""), Some(json!(null))),
            ("null", json!(0), Some(json!(null))),
            ("null", json!(false), Some(json!(null))),
            ("null", json!("x"), None),
            ("null", json!(true), None),
            ("array", json!("[1, 2]"), Some(json!([1, 2]))),
            ("array", json!("{}"), None),
            ("array", json!("[1"), None),
            ("array", json!(null), None),
            ("object", json!("{\"a\": 1}"), Some(json!({"a": 1}))),
            ("object", json!("[]"), None),
        ] {
            assert_eq!(of_type(kind.into(), value.clone()), expected, "{kind} from {value}");
        }
    }

    #[test]
    fn text_is_read_as_json_up_to_a_bound() {
        let text = |length: usize| format!("[{}]", " ".repeat(length - 2));
        assert_eq!(of_type("array".into(), json!(text(JSON_CHARS_MAX))), Some(json!([])));
        assert_eq!(of_type("array".into(), json!(text(JSON_CHARS_MAX + 1))), None);
        let wide = |length: usize| format!("[\"{}\"]", "é".repeat(length - 4));
        assert!(of_type("array".into(), json!(wide(JSON_CHARS_MAX))).is_some());
        assert!(of_type("array".into(), json!(wide(JSON_CHARS_MAX + 1))).is_none());
        let deep = "[".repeat(30_000) + &"]".repeat(30_000);
        assert_eq!(of_type("array".into(), json!(deep)), None);
    }

    #[test]
    fn one_of_several_types_that_fits_is_left_alone() {
        assert_eq!(of_type(json!(["number", "string"]), json!("5")), Some(json!("5")));
        assert_eq!(of_type(json!(["string", "null"]), json!(null)), Some(json!(null)));
        assert_eq!(of_type(json!(["number", "boolean"]), json!("true")), Some(json!(true)));
        assert_eq!(of_type(json!(["integer", "string"]), json!(true)), Some(json!(1)));
    }

    #[test]
    fn every_part_is_reached() {
        let schema = json!({
            "type": "object",
            "properties": {
                "a/b~": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}},
                "pair": {"prefixItems": [{"type": "string"}], "items": {"type": "number"}},
                "both": {"allOf": [{"type": "string"}, {"minLength": 1}]},
                "json": {"type": "object", "properties": {"n": {"type": "number"}}},
            },
            "additionalProperties": {"type": "boolean"},
        });
        let value = json!({
            "a/b~": ["7", "true", 3], "pair": [1, "2", "3"], "both": 12,
            "json": "{\"n\": \"1\"}", "other": "true",
        });
        let expected = json!({
            "a/b~": [7, true, 3], "pair": ["1", 2, 3], "both": "12", "json": {"n": 1}, "other": true,
        });
        assert_eq!(under(schema, value), Some(expected));
        let tuple = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "items": [{"type": "number"}, {"type": "string"}],
        });
        assert_eq!(under(tuple, json!(["1", 2, "3"])), Some(json!([1, "2", "3"])));
    }

    #[test]
    fn unions_take_the_first_member_that_fits() {
        let union = |keyword: &str, members: Value| json!({keyword: members});
        let text_or_null = json!([{"type": "string"}, {"type": "null"}]);
        assert_eq!(under(union("anyOf", text_or_null.clone()), json!(null)), Some(json!(null)));
        assert_eq!(under(union("oneOf", text_or_null), json!(5)), Some(json!("5")));
        let bounded = json!([{"type": "number", "minimum": 10}, {"type": "string"}]);
        assert_eq!(under(union("anyOf", bounded.clone()), json!("12")), Some(json!(12)));
        assert_eq!(under(union("anyOf", bounded), json!("5")), Some(json!("5")));
        let none = json!([{"type": "object"}, {"type": "array"}]);
        assert_eq!(under(union("anyOf", none), json!("x")), None);
        let shared = json!({
            "$defs": {"n": {"type": "number"}},
            "anyOf": [{"$ref": "#/$defs/n"}, {"type": "boolean"}],
        });
        assert_eq!(under(shared.clone(), json!("true")), Some(json!(true)));
        assert_eq!(under(shared, json!(4)), Some(json!(4)));
    }

    #[test]
    fn what_a_pattern_may_match_is_not_coerced_as_additional() {
        let schema = json!({
            "patternProperties": {"^s": {"type": "string"}},
            "additionalProperties": {"type": "number"},
        });
        assert_eq!(under(schema, json!({"s": "5", "n": 1})), Some(json!({"s": "5", "n": 1})));
    }
}
