//! The power of a simulated machine: it counts everything that can be cut, and fails at one of them.
//!
//! Owns one counter over disk operations and outside effects, so that each place between two of them is a place to die.
//! It must never touch a file.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Acts of one machine after which it is taken to run in circles.
const ACTS_MAX: usize = 2_000;

/// What can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Act {
    /// A file or directory is made.
    Make,
    /// Bytes are written.
    Write,
    /// A file gets another length.
    SetLen,
    /// A file or directory is synced.
    Sync,
    /// A file gets another name.
    Rename,
    /// A file is removed.
    Remove,
    /// Something happens outside of the engine: a tool's effect, a model call, a hook.
    Effect,
}

/// How an act fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The process dies before it.
    Before,
    /// It happens, and the process dies before it hears of it.
    After,
    /// Half of it happens, and the process dies. Only writes can be torn.
    Torn,
    /// It and so many acts of the disk after it do not happen, the caller hears this error, and everything goes on.
    Fault(io::ErrorKind, usize),
    /// Half of a write happens, the caller hears so, and everything goes on.
    Short,
}

/// How much of an act happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    Whole,
    /// Half of it.
    Half,
}

/// The power supply of one life of the process.
#[derive(Debug, Default)]
pub struct Power {
    plan: Mutex<Plan>,
    out: CancellationToken,
}

#[derive(Debug, Default)]
struct Plan {
    blow: Option<(usize, Blow)>,
    acts: Vec<Act>,
}

impl Power {
    /// Power that never fails.
    pub fn steady() -> Self {
        Self::default()
    }

    /// Power that fails in this way at act `at`, counted from 0.
    pub fn failing(at: usize, blow: Blow) -> Self {
        Self { plan: Mutex::new(Plan { blow: Some((at, blow)), acts: Vec::new() }), ..Self::default() }
    }

    /// The acts so far, in order.
    pub fn acts(&self) -> Vec<Act> {
        self.lock().acts.clone()
    }

    /// True if the process was ended because it never came to rest.
    pub fn is_spent(&self) -> bool {
        self.lock().acts.len() >= ACTS_MAX
    }

    /// True once the process has died.
    pub fn is_out(&self) -> bool {
        self.out.is_cancelled()
    }

    /// Returns once the process has died.
    pub async fn out(&self) {
        self.out.cancelled().await;
    }

    /// Ends the process here.
    pub fn cut(&self) {
        self.out.cancel();
    }

    /// Performs an act of the disk, as far as the power allows.
    pub fn act<T>(&self, act: Act, perform: impl FnOnce(Share) -> io::Result<T>) -> io::Result<T> {
        // Held throughout: the cut of one thread's act must not fall into the middle of another's.
        let mut plan = self.lock();
        if plan.acts.len() >= ACTS_MAX {
            self.cut();
        }
        if self.is_out() {
            return Err(Self::gone());
        }
        match plan.next(act) {
            None => perform(Share::Whole),
            Some(Blow::Fault(kind, _)) => Err(kind.into()),
            Some(Blow::Short) => perform(Share::Half),
            Some(blow @ (Blow::Before | Blow::After | Blow::Torn)) => {
                // What it answers is lost with the process.
                match blow {
                    Blow::After => drop(perform(Share::Whole)),
                    Blow::Torn => drop(perform(Share::Half)),
                    Blow::Before | Blow::Fault(..) | Blow::Short => {}
                }
                self.cut();
                Err(Self::gone())
            }
        }
    }

    /// Performs an effect outside of the process. A process that dies here never goes on.
    pub async fn effect<T>(&self, perform: impl FnOnce() -> T) -> T {
        let mut done = None;
        let acted = self.act(Act::Effect, |_| {
            done = Some(perform());
            Ok(())
        });
        match (acted, done) {
            (Ok(()), Some(done)) => done,
            _ => std::future::pending().await,
        }
    }

    /// Reads, unless the process has died.
    pub fn read<T>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.is_out() { Err(Self::gone()) } else { read() }
    }

    fn gone() -> io::Error {
        io::Error::other("the process has died")
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan {
    /// Counts an act and answers what strikes it. A fault is for the disk, and only writes fall short.
    fn next(&mut self, act: Act) -> Option<Blow> {
        let number = self.acts.len();
        self.acts.push(act);
        let (at, blow) = self.blow.as_mut()?;
        if let Blow::Fault(_, more) = blow
            && *at < number
            && *more > 0
            && act != Act::Effect
        {
            // An outage is over after so many failures, not after so much else.
            *more -= 1;
        } else if *at != number {
            return None;
        }
        let blow = *blow;
        match (blow, act) {
            (Blow::Fault(..), Act::Effect) => None,
            (Blow::Short | Blow::Torn, Act::Write) => Some(blow),
            (Blow::Short | Blow::Torn, _) => None,
            (Blow::Before | Blow::After | Blow::Fault(..), _) => Some(blow),
        }
    }
}
