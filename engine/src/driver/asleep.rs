//! A run that waits for its model without a driver: thousands may, and each needs only what the store does not hold.
//!
//! Owns what stays of a driver then, the open call and the reasons to load the driver again. It must never change the
//! run: whatever happens while it sleeps is taken in by the driver that is loaded for it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use model::{Millis, RunId};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::model_call::{ModelCall, ModelNews};
use super::{Attached, Driver};
use crate::budgets::Reservation;
use crate::error::Error;
use crate::runs::Watched;
use crate::shared::Shared;

/// What stays of a driver while its run waits for a model.
pub(crate) struct Asleep {
    run: RunId,
    call: ModelCall,
    cancel: CancellationToken,
    watched: Arc<Watched>,
    deadline: Option<Millis>,
    /// What the call may still give back to its batch.
    reservation: Option<Reservation>,
    /// What is missing is looked for once the answer is committed.
    has_to_look: bool,
}

impl Asleep {
    /// The run.
    pub(crate) fn run(&self) -> RunId {
        self.run
    }

    /// Waits until the run needs a driver again; answers what the stream told, if it is for that.
    pub(crate) async fn until_needed(&mut self, shared: &Shared) -> Option<Box<ModelNews>> {
        let Self { call, watched, deadline, .. } = self;
        let left = deadline.map(|at| Duration::from_millis(at.since(shared.clock.now())));
        // Parts that nobody follows are only put together.
        let news = poll_fn(|context| {
            loop {
                let news = ready!(call.poll(context));
                if !matches!(news, ModelNews::Update(_)) || watched.has_listeners() {
                    return Poll::Ready(Box::new(news));
                }
            }
        });
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => None,
            news = news => Some(news),
            () = watched.inbox.notified() => None,
            () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => None,
        }
    }
}

impl Driver {
    /// Gives up everything that can be loaded again, if the run waits for its model alone and there is no seat for its
    /// driver.
    ///
    /// 1. The intent of the call was durable before the call, and with it all that the context is made of. What was
    ///    committed since holds no message, so a driver loaded from the store is this one again.
    /// 2. Nothing else is under way, and nothing waits for a barrier: the call is all that would be lost.
    /// 3. Only an engine that ends loses the call. The run stays its own: nothing is settled, nothing asked again.
    pub(super) fn fall_asleep(&mut self) -> Option<Asleep> {
        let is_alone = self.performing.is_empty()
            && self.unsynced.is_empty()
            && self.untold.is_empty()
            && self.left_over.is_empty();
        let is_followed = self.attached.is_some() || self.watched.has_listeners();
        if !is_alone || is_followed || self.is_stopping || self.state.core.abort.is_some() {
            return None;
        }
        if self.model.is_none() || self.seat.is_some() {
            return None;
        }
        self.seat = self.shared.seats.clone().try_acquire_owned().ok();
        if self.seat.is_some() {
            return None;
        }
        let deadline = self.state.core.deadline;
        let deadline = deadline.at.filter(|_| deadline.paused_since.is_none());
        Some(Asleep {
            run: self.run,
            call: self.model.take()?,
            cancel: self.cancel.clone(),
            watched: Arc::clone(&self.watched),
            deadline,
            reservation: self.reservation.take(),
            has_to_look: self.has_to_look,
        })
    }

    /// Loads the driver of a run that slept.
    pub(crate) fn wake(
        shared: Arc<Shared>,
        asleep: Asleep,
        loading: Option<OwnedSemaphorePermit>,
    ) -> Result<Box<Self>, Error> {
        let Asleep { run, call, cancel, reservation, has_to_look, watched: _, deadline: _ } = asleep;
        let mut driver = Self::load(shared, run, Attached::default(), loading)?;
        driver.learn_who_pays();
        driver.active.push(call.effect());
        driver.model = Some(call);
        driver.cancel = cancel;
        driver.reservation = reservation;
        driver.has_to_look = has_to_look;
        Ok(driver)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::stream::BoxStream;
    use model::input::Failure;
    use model::{Message, Outcome};
    use serde_json::json;

    use super::*;
    use crate::clock::TimerClock;
    use crate::config::{Api, Config, Model};
    use crate::engine::Engine;
    use crate::job::Job;
    use crate::provider::{Intent, ModelProvider, Rehearsal, Request, StreamEvent};
    use crate::runs::Rest;
    use crate::shared::SEATS;

    /// A rehearsal whose calls are counted.
    struct Counted(Rehearsal, Arc<AtomicUsize>);

    impl ModelProvider for Counted {
        fn prepare(&self, request: &Request) -> Result<Intent, Failure> {
            self.0.prepare(request)
        }

        fn stream(&self, request: Request, abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
            self.1.fetch_add(1, Ordering::AcqRel);
            self.0.stream(request, abort)
        }
    }

    /// An engine in which every run sleeps, and the count of its calls.
    fn engine() -> (Engine, Arc<AtomicUsize>) {
        let script = json!({ "turns": [{ "text": "a b c", "delay_ms": 60_000, "chunk_chars": 1, "chunk_ms": 9 }],
                             "after": "stop" });
        let calls = Arc::default();
        let model = Counted(Rehearsal::from_value(&script).unwrap(), Arc::clone(&calls));
        let clock = TimerClock::starting_at(Millis(1));
        let engine = Engine::memory().clock(clock).provider("m", model).open().unwrap();
        assert_eq!(engine.shared.seats.forget_permits(SEATS), SEATS);
        (engine, calls)
    }

    fn ended(outcome: Outcome) -> Rest {
        Rest::Done { outcome, reason: None }
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_wakes_a_run_and_no_call_is_made_again() {
        let (engine, calls) = engine();
        let run = engine.submit(Job::new("go").model("m")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        run.steer(Message::user("more".to_owned(), Millis(1)), None).await.unwrap();
        assert_eq!(run.outcome().await.unwrap(), ended(Outcome::Completed));
        // One for the prompt, one for what came while the run slept.
        assert_eq!(calls.load(Ordering::Acquire), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_wakes_a_run_marks_the_profile_that_paid() {
        let script = json!({ "turns": [{ "text": "a", "delay_ms": 1_000, "fail": [{ "kind": "auth" }] }] });
        let profiles = vec!["work".to_owned(), "spare".to_owned()];
        let known = Model { profiles, ..Model::new(Api::Rehearsal) };
        let config = Config { models: Arc::new([("m".to_owned(), known)].into()), ..Config::default() };
        let engine = Engine::memory()
            .config(config)
            .clock(TimerClock::starting_at(Millis(1)))
            .provider("m", Rehearsal::from_value(&script).unwrap())
            .open()
            .unwrap();
        assert_eq!(engine.shared.seats.forget_permits(SEATS), SEATS);
        let run = engine.submit(Job::new("go").model("m")).await.unwrap();
        assert_eq!(run.outcome().await.unwrap(), ended(Outcome::Completed));
        let errors = ["work", "spare"].map(|name| engine.shared.profiles.health(name).errors);
        assert_eq!(errors, [1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_and_a_stop_wake_a_run() {
        let (engine, calls) = engine();
        let run = engine.submit(Job::new("go").model("m")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        run.cancel("enough", None).await.unwrap();
        let rest = run.outcome().await.unwrap();
        assert!(matches!(rest, Rest::Done { outcome: Outcome::Cancelled, .. }), "{rest:?}");

        let run = engine.submit(Job::new("go").model("m")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        engine.stop().await;
        assert_eq!(run.outcome().await.unwrap(), Rest::Stopped);
        assert_eq!(calls.load(Ordering::Acquire), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_wakes_a_run() {
        let (engine, _) = engine();
        let job = Job { timeout_s: Some(1), ..Job::new("go").model("m") };
        let run = engine.submit(job).await.unwrap();
        let rest = run.outcome().await.unwrap();
        assert!(matches!(rest, Rest::Done { outcome: Outcome::TimedOut, .. }), "{rest:?}");
    }
}
