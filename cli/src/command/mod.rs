//! The commands, one file each.
//!
//! Owns their list.

use clap::Subcommand;

use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

mod approve;
mod batch;
mod bench;
mod cancel;
mod config;
mod deny;
mod doctor;
mod events;
mod extend;
mod follow_up;
mod gc;
mod journal;
mod loops;
mod ls;
mod release;
mod replay;
mod resolve;
mod resume;
mod run;
mod show;
mod steer;
mod stop;
mod transcript;
mod verify;
mod why;

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::Run),
    Resume(resume::Resume),
    Stop(stop::Stop),
    Ls(ls::Ls),
    Show(show::Show),
    Why(why::Why),
    Transcript(transcript::Transcript),
    Events(events::Events),
    Journal(journal::Journal),
    Steer(steer::Steer),
    FollowUp(follow_up::FollowUp),
    Cancel(cancel::Cancel),
    Approve(approve::Approve),
    Deny(deny::Deny),
    Resolve(resolve::Resolve),
    Release(release::Release),
    Extend(extend::Extend),
    Replay(replay::Replay),
    Verify(verify::Verify),
    Loops(loops::Loops),
    Batch(batch::Batch),
    Doctor(doctor::Doctor),
    Bench(bench::Bench),
    Gc(gc::Gc),
    #[command(hide = true)]
    Config(config::Config),
}

impl Command {
    /// Does it.
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        match self {
            Self::Run(run) => run.run(context),
            Self::Resume(resume) => resume.run(context),
            Self::Stop(stop) => stop.run(context),
            Self::Ls(ls) => ls.run(context),
            Self::Show(show) => show.run(context),
            Self::Why(why) => why.run(context),
            Self::Transcript(transcript) => transcript.run(context),
            Self::Events(events) => events.run(context),
            Self::Journal(journal) => journal.run(context),
            Self::Steer(steer) => steer.run(context),
            Self::FollowUp(follow_up) => follow_up.run(context),
            Self::Cancel(cancel) => cancel.run(context),
            Self::Approve(approve) => approve.run(context),
            Self::Deny(deny) => deny.run(context),
            Self::Resolve(resolve) => resolve.run(context),
            Self::Release(release) => release.run(context),
            Self::Extend(extend) => extend.run(context),
            Self::Replay(replay) => replay.run(context),
            Self::Verify(verify) => verify.run(context),
            Self::Loops(loops) => loops.run(context),
            Self::Batch(batch) => batch.run(context),
            Self::Doctor(doctor) => doctor.run(context),
            Self::Bench(bench) => bench.run(context),
            Self::Gc(gc) => gc.run(context),
            Self::Config(config) => config.run(context),
        }
    }
}
