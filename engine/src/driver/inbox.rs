//! A run's inbox, as its driver sees it.
//!
//! Owns the items that the cursors have not passed. It must never mark an item: the run's cursors do.

use std::collections::BTreeMap;

use model::inbox::{Control, Item};
use model::state::Cursors;
use model::{Message, Waiting};

/// The items of one run that may still be taken.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    items: BTreeMap<u64, Item>,
    len: u64,
    /// Decisions before this position were handed to the run, whether or not it could use them.
    handed: u64,
}

impl Inbox {
    /// Number of items ever accepted, as far as read.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Takes in the item at the next position.
    pub(crate) fn accept(&mut self, position: u64, item: Item) {
        self.items.insert(position, item);
        self.len = self.len.max(position.saturating_add(1));
    }

    /// Positions before `len` exist, whether or not their items are of interest.
    pub(crate) fn skip_to(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// What waits for the next poll.
    pub(crate) fn waiting(&self, cursors: &Cursors) -> Waiting {
        if self.items.is_empty() {
            return Waiting::default();
        }
        Waiting {
            steering: self.steering(cursors).next().is_some(),
            follow_up: self.follow_ups(cursors).next().is_some(),
        }
    }

    /// Steering messages that were not taken, in order.
    pub(crate) fn steering(&self, cursors: &Cursors) -> impl Iterator<Item = (u64, &Message)> {
        self.items.range(cursors.steering..).filter_map(|(&position, item)| match item {
            Item::Steering(message) => Some((position, message)),
            Item::FollowUp(_) | Item::Control(_) => None,
        })
    }

    /// Follow-up messages that were not taken, in order.
    pub(crate) fn follow_ups(&self, cursors: &Cursors) -> impl Iterator<Item = (u64, &Message)> {
        self.items.range(cursors.follow_up..).filter_map(|(&position, item)| match item {
            Item::FollowUp(message) => Some((position, message)),
            Item::Steering(_) | Item::Control(_) => None,
        })
    }

    /// The next decision that was not handed to the run yet.
    pub(crate) fn next_control(&mut self, cursors: &Cursors) -> Option<(u64, Control)> {
        let from = cursors.control.max(self.handed);
        let (position, control) = self.items.range(from..).find_map(|(&position, item)| match item {
            Item::Control(control) => Some((position, control.clone())),
            Item::Steering(_) | Item::FollowUp(_) => None,
        })?;
        self.handed = position.saturating_add(1);
        Some((position, control))
    }

    /// True if a decision waits to be handed to the run.
    pub(crate) fn has_control(&self, cursors: &Cursors) -> bool {
        let from = cursors.control.max(self.handed);
        self.items.range(from..).any(|(_, item)| match item {
            Item::Control(_) => true,
            Item::Steering(_) | Item::FollowUp(_) => false,
        })
    }

    /// The message at a position.
    pub(crate) fn message(&self, position: u64) -> Option<Message> {
        match self.items.get(&position)? {
            Item::Steering(message) | Item::FollowUp(message) => Some(message.clone()),
            Item::Control(_) => None,
        }
    }

    /// Forgets items that every cursor has passed.
    pub(crate) fn forget(&mut self, cursors: &Cursors) {
        if self.items.is_empty() {
            return;
        }
        let low = cursors.steering.min(cursors.follow_up).min(cursors.control);
        self.items = self.items.split_off(&low);
    }
}

/// The least position that any cursor still needs.
pub(crate) fn first_needed(cursors: &Cursors) -> u64 {
    cursors.steering.min(cursors.follow_up).min(cursors.control)
}
