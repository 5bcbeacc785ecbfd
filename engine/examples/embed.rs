//! An engine inside another program: one tool of its own, one model of its own, one directory. Kill it at any moment
//! and start it again with the same directory: it goes on, and the ledger gets its line once. Its tool waits until there
//! is a file `DIR/open` (`touch DIR/open`), so that there is time for that.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::{env, fs, time::Duration};

use engine::provider::{Intent, ModelProvider, Request, StreamEvent};
use engine::tool::{CallContext, Tool, ToolSpec};
use engine::{Engine, Job};
use futures_util::{StreamExt, stream, stream::BoxStream};
use model::input::{Failure, RecoveryClass};
use model::message::{AssistantMessage, StopReason, ToolCall, Usage};
use model::{Block, JsonText, Message, ToolResult};
use serde_json::json;

/// Books a line in `DIR/ledger`, then waits for `DIR/open`.
struct Book(PathBuf, ToolSpec);

#[async_trait::async_trait]
impl Tool for Book {
    fn spec(&self) -> &ToolSpec {
        &self.1
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        let ledger = self.0.join("ledger");
        // `Keyed`: after a crash it runs again with the same key, and must look whether it has had its effect.
        if !fs::read_to_string(&ledger).unwrap_or_default().contains(&call.idempotency_key) {
            let file = fs::File::options().create(true).append(true).open(ledger);
            let booked = file.and_then(|mut file| writeln!(file, "{}", call.idempotency_key));
            booked.map_err(|error| error.to_string())?;
        }
        let open = self.0.join("open");
        if !open.exists() {
            eprintln!("booked; waits for `touch {}`", open.display());
        }
        while !open.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(ToolResult::text("booked"))
    }
}

/// Asks for the tool once, then is done. The answer follows from the request alone.
struct Clerk;

impl ModelProvider for Clerk {
    fn prepare(&self, request: &Request) -> Result<Intent, Failure> {
        let hash = [u8::try_from(request.messages.len()).unwrap_or(u8::MAX); 32];
        Ok(Intent { hash, converter_version: 1, reserve: Usage::default() })
    }

    fn stream(
        &self,
        request: Request,
        _: tokio_util::sync::CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        let is_booked = request.messages.iter().any(|sent| matches!(sent.message, Message::ToolResult(_)));
        let (block, stop_reason) = if is_booked {
            (Block::Text("It is in the ledger.".into()), StopReason::Stop)
        } else {
            let arguments = JsonText::from(&json!({}));
            let call = ToolCall { id: "1".into(), name: "book".into(), arguments, is_duplicate: false };
            (Block::ToolCall(call), StopReason::ToolUse)
        };
        let answer = AssistantMessage { content: vec![block], stop_reason, ..AssistantMessage::default() };
        stream::iter([StreamEvent::Done(Box::new(answer))]).boxed()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    engine::supervise_if_asked();
    let Some(dir) = env::args().nth(1) else {
        eprintln!("usage: embed DIR");
        std::process::exit(2);
    };
    tokio::runtime::Runtime::new()?.block_on(embed(dir.into()))
}

async fn embed(dir: PathBuf) -> Result<(), Box<dyn Error>> {
    let spec =
        ToolSpec::new("book", "Books a line.", json!({ "type": "object" })).class(RecoveryClass::Keyed);
    let engine = Engine::builder(dir.join("store")).tool(Book(dir, spec)).provider("clerk", Clerk).open()?;
    engine.resume(None)?;
    // The key finds the run of an earlier start.
    let run = engine.submit(Job::new("Book a line.").model("clerk").tools(["book"]).key("the line")).await?;
    println!("{:?}", run.outcome().await?);
    Ok(engine.close().await?)
}
