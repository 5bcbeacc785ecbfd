//! The `sprag` command.
//!
//! Owns the way from arguments to one command and from its end to an exit status. It must never decide what a run does:
//! that is the engine's.

mod act;
mod arguments;
mod command;
mod context;
mod failure;
mod memory;
mod output;
mod owner;
mod progress;
mod screen;
mod status;
mod text;
mod watch;

use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

use crate::arguments::Arguments;
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

fn main() -> ExitCode {
    engine::supervise_if_asked();
    memory::keep_few_arenas();
    std::panic::set_hook(Box::new(end_on_panic));
    let arguments = Arguments::parse();
    log_to_stderr(arguments.globals.log);
    let ended = Context::new(arguments.globals).and_then(|context| arguments.command.run(&context));
    match ended {
        Ok(status) => status.into(),
        // Whoever read the output has enough of it.
        Err(Failure::ClosedPipe) => Status::Done.into(),
        Err(Failure::Said { status, message }) => fail(status, &message),
        Err(Failure::Damaged { message }) => fail(Status::Store, &message),
    }
}

fn fail(status: Status, message: &str) -> ExitCode {
    // With stderr gone too there is nobody left to tell.
    let _ = writeln!(io::stderr(), "error: {message}");
    status.into()
}

fn log_to_stderr(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(output::has_colour(&io::stderr()))
        .with_target(false)
        .init();
}

/// A broken invariant ends the process: a run whose driver is gone would wait for ever. What was acknowledged is
/// durable, so the next engine goes on from there.
fn end_on_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    // The store catches what its state database throws, and rebuilds it.
    if place.contains("/sled-") {
        return;
    }
    let payload = panic.payload();
    let words = payload.downcast_ref::<&str>().copied();
    let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words");
    let sentence = format!(
        "error: sprag has a fault ({words}, at {place}); nothing acknowledged is lost, `sprag resume` continues; \
         please report it"
    );
    let _ = writeln!(io::stderr(), "{}", sentence.replace('\n', " "));
    std::process::exit(Status::Internal.code().into());
}
