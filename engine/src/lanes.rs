//! Lanes: who may run. A session runs one run at a time; the engine runs so many at once.
//!
//! Owns the order in which runs get their turn. Both kinds of lane are durable queues because they are derived: at open
//! they are filled again from the runs that have not ended, in order of submission. It must never start a driver.

use std::collections::{HashMap, VecDeque};

use model::RunId;

/// The lanes of one engine.
#[derive(Debug)]
pub(crate) struct Lanes {
    width: usize,
    held: usize,
    sessions: HashMap<String, VecDeque<RunId>>,
    ready: VecDeque<Ready>,
}

/// A run that may go on as soon as a slot is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) run: RunId,
    pub(crate) session: String,
}

impl Lanes {
    /// Lanes with so many global slots, at least one.
    pub(crate) fn new(width: usize) -> Self {
        Self { width: width.max(1), held: 0, sessions: HashMap::new(), ready: VecDeque::new() }
    }

    /// A run joins its session's lane. It is ready if it is first there and `is_active`: a run that a stop or a crash
    /// left waits for a resume, and keeps its place.
    pub(crate) fn join(&mut self, session: &str, run: RunId, is_active: bool) {
        let lane = self.sessions.entry(session.to_owned()).or_default();
        lane.push_back(run);
        if lane.len() == 1 && is_active {
            self.ready.push_back(Ready { run, session: session.to_owned() });
        }
    }

    /// A run that waits in front of its session's lane is ready again: after a person's answer, a timer or a resume.
    /// `goes_first` puts it before those that wait for a slot.
    pub(crate) fn make_ready(&mut self, session: &str, run: RunId, goes_first: bool) {
        let is_first = self.sessions.get(session).and_then(VecDeque::front) == Some(&run);
        if !is_first || self.ready.iter().any(|ready| ready.run == run) {
            return;
        }
        let ready = Ready { run, session: session.to_owned() };
        if goes_first {
            self.ready.push_front(ready);
        } else {
            self.ready.push_back(ready);
        }
    }

    /// The next run that gets a slot.
    pub(crate) fn next(&mut self) -> Option<Ready> {
        if self.held >= self.width {
            return None;
        }
        let ready = self.ready.pop_front()?;
        self.held += 1;
        Some(ready)
    }

    /// A slot is free again: its run rests, or waits for a timer.
    pub(crate) fn release(&mut self) {
        self.held = self.held.saturating_sub(1);
    }

    /// A run has ended: the next of its session is first in the lane. Answers that one.
    pub(crate) fn leave(&mut self, session: &str, run: RunId) -> Option<RunId> {
        let lane = self.sessions.get_mut(session)?;
        let was_first = lane.front() == Some(&run);
        lane.retain(|other| *other != run);
        let next = lane.front().copied();
        if next.is_none() {
            self.sessions.remove(session);
        }
        next.filter(|_| was_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u8) -> RunId {
        RunId([n; 16])
    }

    fn next(lanes: &mut Lanes) -> Option<RunId> {
        lanes.next().map(|ready| ready.run)
    }

    #[test]
    fn a_session_runs_one_run_at_a_time() {
        let mut lanes = Lanes::new(8);
        lanes.join("a", run(1), true);
        lanes.join("a", run(2), true);
        lanes.join("b", run(3), true);
        assert_eq!([(); 3].map(|()| next(&mut lanes)), [Some(run(1)), Some(run(3)), None]);
        lanes.release();
        assert_eq!(lanes.leave("a", run(1)), Some(run(2)));
        lanes.make_ready("a", run(2), false);
        assert_eq!(next(&mut lanes), Some(run(2)));
    }

    #[test]
    fn slots_bound_the_engine_and_an_answer_goes_first() {
        let mut lanes = Lanes::new(1);
        for n in 1..=3 {
            lanes.join(&n.to_string(), run(n), true);
        }
        assert_eq!([(); 2].map(|()| next(&mut lanes)), [Some(run(1)), None]);
        lanes.release();
        lanes.make_ready("1", run(1), true);
        assert_eq!(next(&mut lanes), Some(run(1)));
    }

    #[test]
    fn a_left_run_keeps_its_place() {
        let mut lanes = Lanes::new(1);
        lanes.join("a", run(1), false);
        lanes.join("a", run(2), true);
        assert_eq!(next(&mut lanes), None);
        lanes.make_ready("a", run(2), false);
        assert_eq!(next(&mut lanes), None);
        lanes.make_ready("a", run(1), false);
        assert_eq!(next(&mut lanes), Some(run(1)));
    }
}
