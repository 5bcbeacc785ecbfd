//! A program that embeds the engine, for tests that kill it: one run, whose one turn calls bash.
//!
//! Owns the way from lines on stdin to the engine and from what happens to lines of JSON on stdout.
#![allow(clippy::unwrap_used, reason = "a failed test program tells it to the test by its end")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::config::{Api, Model, OnUnknown, Tool};
use engine::provider::{Rehearsal, Replay};
use engine::{AgentEvent, Builder, Config, Engine, Found, Job, Note, Rest, RunHandle, Stamped};
use futures_util::StreamExt as _;
use model::Message;
use model::input::Resolution;
use serde_json::{Value, json};

fn main() {
    engine::supervise_if_asked();
    let order = std::fs::read_to_string(std::env::args().nth(1).unwrap()).unwrap();
    let order: Value = serde_json::from_str(&order).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(embed(&order));
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

async fn embed(order: &Value) {
    let engine = match builder(order).open() {
        Ok(engine) => engine,
        Err(error) => return say(&json!({ "error": error.to_string() })),
    };
    let live = engine.live_runs().unwrap();
    let run = match live.first() {
        Some(&run) => {
            let run = engine.handle(run);
            let following = tokio::spawn(follow(run.clone()));
            engine.resume(None).unwrap();
            (run, following)
        }
        None => {
            let job =
                Job::new("go").model("m").workspace(order["workspace"].as_str().unwrap()).tools(["bash"]);
            let job = Job { record: order["record"].as_str().map(Into::into), ..job };
            let run = engine.submit(job).await.unwrap();
            (run.clone(), tokio::spawn(follow(run)))
        }
    };
    let (run, mut following) = run;
    say(&json!({ "run": run.id.to_string() }));
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let mut noted = 0;
    let mut is_told = false;
    let mut end = None;
    loop {
        tokio::select! {
            ended = &mut following => end = ended.unwrap(),
            Some(line) = lines.recv() => match line.as_str() {
                "stop" => break,
                words => obey(&run, words).await,
            },
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
        // What was noted came before the rest that it led to, so it is looked at afterwards and told first.
        let rest = tokio::time::timeout(Duration::ZERO, run.outcome()).await;
        let notes = engine.report();
        for note in notes.iter().skip(noted).filter(|note| note.call.is_some()) {
            say(&json!({ "found": note.found.name() }));
        }
        let of_model = |note: &&Note| {
            note.call.is_none() && matches!(note.found, Found::Adopted | Found::Collected | Found::Repeated)
        };
        for note in notes.iter().skip(noted).filter(of_model) {
            say(&json!({ "model_found": note.found.name() }));
        }
        noted = notes.len();
        if let Some(end) = end {
            say(&end);
            break;
        }
        match rest {
            Ok(Ok(Rest::Parked(reason))) if !is_told => {
                say(&json!({ "parked": reason.name() }));
                is_told = true;
            }
            Ok(Ok(Rest::Failed(reason))) => return say(&json!({ "error": reason })),
            Ok(Err(error)) => return say(&json!({ "error": error.to_string() })),
            Ok(Ok(Rest::Parked(_) | Rest::Done { .. } | Rest::Waiting { .. } | Rest::Stopped)) | Err(_) => {}
        }
    }
    engine.close().await.unwrap();
    say(&json!({ "closed": true }));
}

fn builder(order: &Value) -> Builder {
    let one = vec![json!({ "calls": order["calls"] })];
    let mut turns = order["turns"].as_array().cloned().unwrap_or(one);
    turns.push(json!({ "text": "done" }));
    let tool = Tool {
        on_unknown: match order["on_unknown"].as_str() {
            Some("ask") => OnUnknown::Ask,
            Some("fail") => OnUnknown::Fail,
            _ => OnUnknown::Tell,
        },
        output_bytes_max: order["output_bytes_max"].as_u64().unwrap_or(1 << 20),
        output_spool_bytes_max: order["output_spool_bytes_max"].as_u64().unwrap_or(64 << 20),
        timeout_s: order["timeout_s"].as_u64(),
    };
    let config = Config {
        tools: Arc::new(BTreeMap::from([("bash".to_owned(), tool)])),
        durable_workspace: order["durable_workspace"] == true,
        sync_spool: order["sync_spool"] == true,
        ..Config::default()
    };
    let script = json!({ "turns": turns });
    let mut options = store::Options { lock_wait: Duration::from_secs(5), ..store::Options::default() };
    if let Some(boot) = order["boot"].as_u64() {
        options.boot_id = [boot as u8; 16];
    }
    let builder = Engine::builder(order["dir"].as_str().unwrap()).store_options(options);
    let builder = match (order["base_url"].as_str(), order["replay"].as_str()) {
        (None, Some(dir)) => builder.config(config).provider("m", Replay::open(Path::new(dir)).unwrap()),
        (Some(base_url), _) => {
            let is_background = order["background"] == true;
            let key = order["key_env"].as_str();
            builder.config(Config { models: served_at(base_url, key, is_background), ..config })
        }
        (None, None) => builder.config(config).provider("m", Rehearsal::from_value(&script).unwrap()),
    };
    match order["supervisor"].as_str() {
        Some(program) => builder.supervisor(program),
        None => builder,
    }
}

/// A model of a server that speaks Messages, or Responses in the background.
fn served_at(base_url: &str, key: Option<&str>, is_background: bool) -> Arc<BTreeMap<String, Model>> {
    let api = if is_background { Api::OpenaiResponses } else { Api::AnthropicMessages };
    let model = Model {
        base_url: Some(base_url.to_owned()),
        model: Some("m".to_owned()),
        api_key_env: key.map(str::to_owned),
        background: is_background,
        ..Model::new(api)
    };
    Arc::new(BTreeMap::from([("m".to_owned(), model)]))
}

async fn obey(run: &RunHandle, words: &str) {
    let resolution = match words {
        "cancel" => return run.cancel("enough", None).await.unwrap(),
        "retry" => Resolution::Retry,
        "ran" => Resolution::Ran,
        "failed" => Resolution::Failed,
        "undone" => Resolution::Undone,
        other => return say(&json!({ "error": format!("unknown order {other}") })),
    };
    run.resolve(0, 0, resolution, "I looked", None).await.unwrap();
}

async fn follow(run: RunHandle) -> Option<Value> {
    let mut events = std::pin::pin!(run.events(None).unwrap());
    let (mut results, mut notes) = (Vec::new(), Vec::new());
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(Stamped { event, .. }) => event,
            // The engine stops while its run is followed.
            Err(engine::Error::Store(store::Error::Closed)) => return None,
            Err(error) => panic!("{error}"),
        };
        if let AgentEvent::ToolExecutionUpdate { partial, .. } = event {
            say(&json!({ "update": partial.joined_text() }));
        } else if let AgentEvent::MessageEnd { message } = event {
            match &*message {
                Message::ToolResult(message) => results.push(message.result.clone()),
                Message::Custom(message) => notes.push(message.custom_type.clone()),
                Message::User(_) | Message::Assistant(_) => {}
            }
        }
    }
    let results: Vec<Value> = results
        .iter()
        .map(|result| {
            let texts: Vec<Value> = result.to_json()["content"]
                .as_array()
                .unwrap()
                .iter()
                .map(|block| block["text"].clone())
                .collect();
            json!({ "texts": texts, "details": result.details.value(), "is_error": result.is_error })
        })
        .collect();
    let Rest::Done { outcome, .. } = run.outcome().await.unwrap() else { return None };
    Some(json!({ "outcome": outcome.name(), "results": results, "notes": notes }))
}
