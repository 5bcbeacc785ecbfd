//! Arguments of a call against the schema of its tool.
//!
//! Owns the compiled schema and the text of a refusal. It must never fetch a schema from anywhere, and never
//! run a pattern whose time is not linear.

use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::{PatternOptions, ValidationError, ValidatorMap};
use serde_json::Value;

use super::coerce::coerced;

/// The most problems that one refusal names.
const PROBLEMS_MAX: usize = 100;

/// A compiled schema.
#[derive(Debug)]
pub struct Validator {
    schema: Value,
    whole: jsonschema::Validator,
    parts: ValidatorMap,
}

impl Validator {
    /// Compiles `schema`. `Err` says what is wrong with it.
    pub fn new(schema: &Value) -> Result<Self, String> {
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex()).offline();
        let whole = options.build(schema).map_err(|error| error.to_string())?;
        let parts = options.build_map(schema).map_err(|error| error.to_string())?;
        Ok(Self { schema: schema.clone(), whole, parts })
    }

    /// The arguments as the tool gets them: coerced to the types that the schema declares. `Err` is the text
    /// of the call's error result.
    pub fn check(&self, tool: &str, args: &Value) -> Result<Value, String> {
        let is_member = |at: &str, value: &Value| self.parts.get(at).is_some_and(|part| part.is_valid(value));
        let value = coerced(&self.schema, args.clone(), &is_member);
        let problems = self.whole.iter_errors(&value).take(PROBLEMS_MAX);
        let problems: Vec<String> = problems.map(|error| problem(&error)).collect();
        if problems.is_empty() {
            return Ok(value);
        }
        let lines = problems.join("\n");
        Err(format!("Validation failed for tool \"{tool}\":\n{lines}\n\nReceived arguments:\n{args:#}"))
    }
}

fn problem(error: &ValidationError<'_>) -> String {
    let mut path: Vec<String> = error.instance_path().iter().map(|segment| segment.to_string()).collect();
    if let Kind::Required { property: Value::String(name) } = error.kind() {
        path.push(name.clone());
    }
    let path = if path.is_empty() { "root".to_owned() } else { path.join(".") };
    format!("  - {path}: {}", message(error))
}

/// What is wrong, without the value: the arguments follow once, below.
#[expect(clippy::wildcard_enum_match_arm, reason = "the library says the rest in its own words")]
fn message(error: &ValidationError<'_>) -> String {
    match error.kind() {
        Kind::Required { property: Value::String(name) } => format!("must have required properties {name}"),
        Kind::Type { kind: TypeKind::Single(kind) } => format!("must be {kind}"),
        Kind::Type { kind: TypeKind::Multiple(kinds) } => {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            format!("must be either {}", kinds.join(" or "))
        }
        Kind::AdditionalProperties { unexpected } => {
            format!("must not have additional properties {}", unexpected.join(", "))
        }
        Kind::Enum { options } => format!("must be one of {options}"),
        Kind::Constant { expected_value } => format!("must be {expected_value}"),
        Kind::Minimum { limit } => format!("must be >= {limit}"),
        Kind::Maximum { limit } => format!("must be <= {limit}"),
        Kind::ExclusiveMinimum { limit } => format!("must be > {limit}"),
        Kind::ExclusiveMaximum { limit } => format!("must be < {limit}"),
        _ => error.masked().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(schema: Value, args: Value) -> String {
        Validator::new(&schema).unwrap().check("t", &args).unwrap_err()
    }

    #[test]
    fn a_refusal_names_every_problem_and_shows_what_came() {
        let schema = json!({
            "type": "object",
            "properties": {
                "n": {"type": "number"},
                "list": {"type": "array", "items": {"type": "object", "required": ["id"]}},
                "mode": {"enum": ["a", "b"]},
            },
            "required": ["n", "list"],
            "additionalProperties": false,
        });
        let expected = "\
Validation failed for tool \"t\":
  - n: must have required properties n
  - list.1.id: must have required properties id
  - mode: must be one of [\"a\",\"b\"]
  - root: must not have additional properties x

Received arguments:
{
  \"list\": [
    {
      \"id\": 1
    },
    {}
  ],
  \"mode\": \"c\",
  \"x\": true
}";
        let text = refusal(schema, json!({"list": [{"id": 1}, {}], "mode": "c", "x": true}));
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines[1..5].sort();
            lines
        };
        assert_eq!(sorted(&text), sorted(expected));
    }

    #[test]
    fn one_problem_whole() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]});
        assert_eq!(
            refusal(schema, json!({})),
            "Validation failed for tool \"t\":\n  - n: must have required properties n\n\n\
             Received arguments:\n{}"
        );
    }

    #[test]
    fn messages() {
        let message = |schema: Value, args: Value| refusal(schema, args).lines().nth(1).unwrap().to_owned();
        for (schema, args, expected) in [
            (json!({"type": "number"}), json!("x"), "  - root: must be number"),
            (json!({"type": ["number", "array"]}), json!({}), "  - root: must be either number or array"),
            (json!({"properties": {"a": {"minimum": 1}}}), json!({"a": 0}), "  - a: must be >= 1"),
            (json!({"const": 5}), json!(6), "  - root: must be 5"),
            (json!({"pattern": "^a+$"}), json!("b"), "  - root: value does not match \"^a+$\""),
            (
                json!({"anyOf": [{"type": "array"}, {"type": "object"}]}),
                json!(1),
                "  - root: value is not valid under any of the schemas listed in the 'anyOf' keyword",
            ),
        ] {
            assert_eq!(message(schema, args), expected);
        }
    }

    #[test]
    fn received_arguments_are_those_before_coercion() {
        let schema = json!({"properties": {"a": {"type": "number"}}, "required": ["b"]});
        assert!(refusal(schema, json!({"a": "5"})).ends_with("Received arguments:\n{\n  \"a\": \"5\"\n}"));
    }

    #[test]
    fn schemas_that_are_not_closed_and_linear_are_refused() {
        for schema in [
            json!({"$ref": "https://example.com/schema.json"}),
            json!({"$ref": "file:///etc/passwd"}),
            json!({"pattern": "(?=a)b"}),
            json!({"pattern": "(a)\\1"}),
            json!({"type": "nothing"}),
            json!({"anyOf": [{"$ref": "#/$defs/none"}]}),
            json!(5),
        ] {
            assert!(Validator::new(&schema).is_err(), "{schema}");
        }
    }

    #[test]
    fn a_pattern_takes_linear_time() {
        let validator = Validator::new(&json!({"pattern": "^(a+)+$"})).unwrap();
        assert!(validator.check("t", &json!(format!("{}!", "a".repeat(50_000)))).is_err());
    }
}
