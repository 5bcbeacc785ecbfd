//! Lanes: who may run. A session runs one run at a time; the engine runs so many at once.
//!
//! Owns the order in which runs get their turn. Both kinds of lane are durable queues because they are derived: at open
//! they are filled again from the runs that have not ended, in order of submission. It must never start a driver.

use std::collections::{HashMap, VecDeque};

use model::RunId;

use crate::keys::Lane;

/// The lanes of one engine.
#[derive(Debug)]
pub(crate) struct Lanes {
    width: usize,
    held: usize,
    sessions: HashMap<Lane, VecDeque<Place>>,
    lane_of: HashMap<RunId, Lane>,
    ready: VecDeque<RunId>,
}

/// A run's place in the lane of its session.
#[derive(Debug)]
struct Place {
    run: RunId,
    /// It runs when its turn comes; a run that a stop or a crash left waits for a resume.
    is_active: bool,
    /// It waits for a slot.
    is_ready: bool,
}

impl Lanes {
    /// Lanes with so many global slots, at least one.
    pub(crate) fn new(width: usize) -> Self {
        Self {
            width: width.max(1),
            held: 0,
            sessions: HashMap::new(),
            lane_of: HashMap::new(),
            ready: VecDeque::new(),
        }
    }

    /// A run joins its session's lane. It is ready if it is first there and `is_active`: a run that a stop or a crash
    /// left waits for a resume, and keeps its place.
    pub(crate) fn join(&mut self, lane: Lane, run: RunId, is_active: bool) {
        self.lane_of.insert(run, lane);
        let places = self.sessions.entry(lane).or_default();
        let is_ready = places.is_empty() && is_active;
        places.push_back(Place { run, is_active, is_ready });
        if is_ready {
            self.ready.push_back(run);
        }
    }

    /// A run may go on: after a person's answer, a timer or a resume. It is ready once it is first in its session's
    /// lane. `goes_first` puts it before those that wait for a slot.
    pub(crate) fn make_ready(&mut self, run: RunId, goes_first: bool) {
        let places = self.lane_of.get(&run).and_then(|lane| self.sessions.get_mut(lane));
        let Some((index, place)) =
            places.and_then(|places| places.iter_mut().enumerate().find(|(_, place)| place.run == run))
        else {
            return;
        };
        place.is_active = true;
        if index > 0 || place.is_ready {
            return;
        }
        place.is_ready = true;
        if goes_first {
            self.ready.push_front(run);
        } else {
            self.ready.push_back(run);
        }
    }

    /// The next run that gets a slot.
    pub(crate) fn next(&mut self) -> Option<RunId> {
        if self.held >= self.width {
            return None;
        }
        let run = self.ready.pop_front()?;
        let first = self.lane_of.get(&run).and_then(|lane| self.sessions.get_mut(lane)?.front_mut());
        if let Some(place) = first {
            place.is_ready = false;
        }
        self.held += 1;
        Some(run)
    }

    /// Slots that are taken.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// A slot is free again: its run rests, or waits for a timer.
    pub(crate) fn release(&mut self) {
        self.held = self.held.saturating_sub(1);
    }

    /// A run has ended: the next of its session is first in the lane. Answers that one, if it is to run.
    pub(crate) fn leave(&mut self, run: RunId) -> Option<RunId> {
        let lane = self.lane_of.remove(&run)?;
        let places = self.sessions.get_mut(&lane)?;
        let was_first = places.front().is_some_and(|place| place.run == run);
        places.retain(|place| place.run != run);
        let next = places.front().filter(|place| was_first && place.is_active).map(|place| place.run);
        if places.is_empty() {
            self.sessions.remove(&lane);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u8) -> RunId {
        RunId([n; 16])
    }

    #[test]
    fn a_session_runs_one_run_at_a_time() {
        let mut lanes = Lanes::new(8);
        lanes.join([0; 16], run(1), true);
        lanes.join([0; 16], run(2), true);
        lanes.join([1; 16], run(3), true);
        assert_eq!([lanes.next(), lanes.next(), lanes.next()], [Some(run(1)), Some(run(3)), None]);
        lanes.release();
        assert_eq!(lanes.leave(run(1)), Some(run(2)));
        lanes.make_ready(run(2), false);
        assert_eq!(lanes.next(), Some(run(2)));
    }

    #[test]
    fn slots_bound_the_engine_and_an_answer_goes_first() {
        let mut lanes = Lanes::new(1);
        for n in 1..=3 {
            lanes.join([n; 16], run(n), true);
        }
        assert_eq!([lanes.next(), lanes.next()], [Some(run(1)), None]);
        lanes.release();
        lanes.make_ready(run(1), true);
        assert_eq!(lanes.next(), Some(run(1)));
    }

    #[test]
    fn a_left_run_keeps_its_place() {
        let mut lanes = Lanes::new(1);
        lanes.join([0; 16], run(1), false);
        lanes.join([0; 16], run(2), true);
        assert_eq!(lanes.next(), None);
        lanes.make_ready(run(2), false);
        assert_eq!(lanes.next(), None);
        lanes.make_ready(run(1), false);
        assert_eq!(lanes.next(), Some(run(1)));
    }

    #[test]
    fn a_left_run_does_not_start_because_the_one_before_it_ends() {
        let mut lanes = Lanes::new(8);
        for n in 1..=3 {
            lanes.join([0; 16], run(n), false);
        }
        lanes.make_ready(run(1), false);
        assert_eq!(lanes.leave(run(1)), None);
        lanes.make_ready(run(3), false);
        lanes.make_ready(run(2), false);
        assert_eq!(lanes.leave(run(2)), Some(run(3)));
    }
}
