//! Every instant at which the process or its machine may die, and what must hold afterwards.

mod blind;
mod check;
mod enumerate;
mod faults;
mod instants;
mod random;
mod scenarios;
