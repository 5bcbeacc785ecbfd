//! The tools of an engine, by name.
//!
//! Owns the list and each tool's compiled schema. It must never find a tool under a name that is not exactly
//! its own.

use std::collections::HashMap;
use std::sync::Arc;

use super::validate::Validator;
use super::{Tool, ToolSpec};

/// Why a list of tools is none that an engine can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Two tools have this name.
    #[error("two tools are called `{name}`; give one of them another name")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A tool's schema does not compile.
    #[error("the schema of tool `{name}` is not valid: {reason}; correct its parameters")]
    Schema {
        /// The tool's name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A tool, ready to be called.
pub struct Entry {
    /// The tool.
    pub tool: Arc<dyn Tool>,
    /// Its schema, compiled.
    pub validator: Validator,
}

/// Tools by name.
#[derive(Default)]
pub struct Registry {
    entries: HashMap<String, Entry>,
    specs: Arc<[ToolSpec]>,
}

impl Registry {
    /// The registry of these tools.
    pub fn new(tools: Vec<Arc<dyn Tool>>) -> Result<Self, Error> {
        let specs = tools.iter().map(|tool| tool.spec().clone()).collect();
        let mut entries = HashMap::new();
        for tool in tools {
            let name = tool.spec().name.clone();
            let validator = Validator::new(&tool.spec().parameters)
                .map_err(|reason| Error::Schema { name: name.clone(), reason })?;
            if entries.insert(name.clone(), Entry { tool, validator }).is_some() {
                return Err(Error::Duplicate { name });
            }
        }
        Ok(Self { entries, specs })
    }

    /// The tool of exactly this name.
    pub fn resolve(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// What the tools say of themselves, in the order in which they were given.
    pub fn specs(&self) -> Arc<[ToolSpec]> {
        Arc::clone(&self.specs)
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use model::ToolResult;
    use serde_json::{Value, json};

    use super::*;
    use crate::tool::CallContext;
    use crate::tool::builtin::{BUILTIN, builtin};

    struct Named(ToolSpec);

    #[async_trait]
    impl Tool for Named {
        fn spec(&self) -> &ToolSpec {
            &self.0
        }

        async fn run(&self, _call: CallContext) -> Result<ToolResult, String> {
            Ok(ToolResult::default())
        }
    }

    fn named(name: &str, parameters: Value) -> Arc<dyn Tool> {
        Arc::new(Named(ToolSpec::new(name, "", parameters)))
    }

    #[test]
    fn a_registry_is_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Registry>();
    }

    #[test]
    fn names_are_exact() {
        let registry = Registry::new(vec![named("b", json!({})), named("a", json!(true))]).unwrap();
        assert!(registry.resolve("a").is_some());
        assert!(["A", " a", "a ", "c", ""].iter().all(|name| registry.resolve(name).is_none()));
        let names: Vec<String> = registry.specs().iter().map(|spec| spec.name.clone()).collect();
        assert_eq!(names, ["b", "a"]);
    }

    #[test]
    fn duplicates_and_bad_schemas_are_errors_with_the_name() {
        let error = Registry::new(vec![named("a", json!({})), named("a", json!({}))]).err();
        assert_eq!(error, Some(Error::Duplicate { name: "a".into() }));
        let error = Registry::new(vec![named("bad", json!({"type": "nothing"}))]).err().unwrap();
        assert!(error.to_string().starts_with("the schema of tool `bad` is not valid: "), "{error}");
    }

    #[test]
    fn every_builtin_tool_registers_under_its_name() {
        let tools = BUILTIN.iter().filter_map(|name| builtin(name)).collect();
        let registry = Registry::new(tools).unwrap();
        for name in BUILTIN {
            assert_eq!(registry.resolve(name).unwrap().tool.spec().name, name);
        }
        assert!(builtin("Read").is_none());
    }
}
