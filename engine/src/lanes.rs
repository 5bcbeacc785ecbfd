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
    standing: Standing,
}

/// What a run in a lane is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// A stop or a crash left it, or it rests: it waits to be made ready.
    Left,
    /// It runs when its turn in the session comes.
    Active,
    /// It waits for a slot.
    Ready,
    /// It holds a slot.
    Driven,
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

    /// From now on there are so many slots. Runs that hold more than that keep theirs until they rest.
    pub(crate) fn set_width(&mut self, width: usize) {
        self.width = width.max(1);
    }

    /// A run joins its session's lane. It is ready if it is first there and `is_active`: a run that a stop or a crash
    /// left waits for a resume, and keeps its place.
    pub(crate) fn join(&mut self, lane: Lane, run: RunId, is_active: bool) {
        self.lane_of.insert(run, lane);
        // Nearly every session has one run.
        let alone = || VecDeque::with_capacity(1);
        self.sessions.entry(lane).or_insert_with(alone).push_back(Place { run, standing: Standing::Left });
        if is_active {
            self.make_ready(run, false);
        }
    }

    /// A run may go on: after a person's answer, a timer or a resume. It is ready once it is first in its session's
    /// lane. `goes_first` puts it before those that wait for a slot. One that is ready or driven already stays so.
    pub(crate) fn make_ready(&mut self, run: RunId, goes_first: bool) {
        let Some(lane) = self.lane_of.get(&run).and_then(|session| self.sessions.get_mut(session)) else {
            return;
        };
        let is_first = lane.front().is_some_and(|place| place.run == run);
        let Some(place) = lane.iter_mut().find(|place| place.run == run) else { return };
        match place.standing {
            Standing::Ready | Standing::Driven => {}
            Standing::Left | Standing::Active if !is_first => place.standing = Standing::Active,
            Standing::Left | Standing::Active => {
                place.standing = Standing::Ready;
                if goes_first {
                    self.ready.push_front(run);
                } else {
                    self.ready.push_back(run);
                }
            }
        }
    }

    /// True if a run holds a slot, or waits for one.
    pub(crate) fn is_moving(&self, run: RunId) -> bool {
        let lane = self.lane_of.get(&run).and_then(|session| self.sessions.get(session));
        lane.is_some_and(|lane| {
            lane.iter()
                .any(|place| place.run == run && matches!(place.standing, Standing::Ready | Standing::Driven))
        })
    }

    /// The next run that gets a slot.
    pub(crate) fn next(&mut self) -> Option<RunId> {
        if self.held >= self.width {
            return None;
        }
        let run = self.ready.pop_front()?;
        self.held += 1;
        self.stand(run, Standing::Driven);
        Some(run)
    }

    /// Slots that are taken.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// A slot is free again: its run rests, or waits for a timer.
    pub(crate) fn release(&mut self, run: RunId) {
        self.held = self.held.saturating_sub(1);
        self.stand(run, Standing::Left);
    }

    /// A run has ended: the next of its session is first in the lane, and ready if it is to run.
    pub(crate) fn leave(&mut self, run: RunId) {
        let Some(session) = self.lane_of.remove(&run) else { return };
        let Some(lane) = self.sessions.get_mut(&session) else { return };
        lane.retain(|place| place.run != run);
        let next = lane.front().filter(|place| place.standing == Standing::Active).map(|place| place.run);
        if lane.is_empty() {
            self.sessions.remove(&session);
        }
        if let Some(next) = next {
            self.make_ready(next, false);
        }
    }

    fn stand(&mut self, run: RunId, standing: Standing) {
        let lane = self.lane_of.get(&run).and_then(|session| self.sessions.get_mut(session));
        if let Some(place) = lane.and_then(|lane| lane.iter_mut().find(|place| place.run == run)) {
            place.standing = standing;
        }
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
        lanes.join([1; 16], run(1), true);
        lanes.join([1; 16], run(2), true);
        lanes.join([2; 16], run(3), true);
        assert_eq!([lanes.next(), lanes.next(), lanes.next()], [Some(run(1)), Some(run(3)), None]);
        lanes.release(run(1));
        lanes.leave(run(1));
        assert_eq!(lanes.next(), Some(run(2)));
    }

    #[test]
    fn slots_bound_the_engine_and_an_answer_goes_first() {
        let mut lanes = Lanes::new(1);
        for n in 1..=3 {
            lanes.join([n; 16], run(n), true);
        }
        assert_eq!([lanes.next(), lanes.next()], [Some(run(1)), None]);
        lanes.release(run(1));
        lanes.make_ready(run(1), true);
        assert_eq!(lanes.next(), Some(run(1)));
    }

    #[test]
    fn a_run_that_is_driven_or_ready_is_not_given_a_second_slot() {
        let mut lanes = Lanes::new(8);
        lanes.join([1; 16], run(1), true);
        lanes.make_ready(run(1), true);
        assert_eq!([lanes.next(), lanes.next()], [Some(run(1)), None]);
        lanes.make_ready(run(1), true);
        assert_eq!(lanes.next(), None);
    }

    #[test]
    fn a_left_run_keeps_its_place() {
        let mut lanes = Lanes::new(1);
        lanes.join([1; 16], run(1), false);
        lanes.join([1; 16], run(2), true);
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
            lanes.join([1; 16], run(n), false);
        }
        lanes.make_ready(run(1), false);
        assert_eq!(lanes.next(), Some(run(1)));
        lanes.make_ready(run(3), false);
        lanes.release(run(1));
        lanes.leave(run(1));
        assert_eq!(lanes.next(), None);
        lanes.make_ready(run(2), false);
        assert_eq!(lanes.next(), Some(run(2)));
        lanes.release(run(2));
        lanes.leave(run(2));
        assert_eq!(lanes.next(), Some(run(3)));
    }

    #[test]
    fn a_narrower_engine_takes_no_slot_away_and_a_wider_one_gives_more_at_once() {
        let mut lanes = Lanes::new(2);
        for n in 1..=5 {
            lanes.join([n; 16], run(n), true);
        }
        assert_eq!([lanes.next(), lanes.next(), lanes.next()], [Some(run(1)), Some(run(2)), None]);
        lanes.set_width(1);
        lanes.release(run(1));
        assert_eq!((lanes.held(), lanes.next()), (1, None));
        lanes.set_width(3);
        assert_eq!([lanes.next(), lanes.next(), lanes.next()], [Some(run(3)), Some(run(4)), None]);
    }
}
