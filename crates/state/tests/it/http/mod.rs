//! The store over HTTP, as clients use it.

mod access;
mod bodies;
mod drawn;
mod keys;
mod outages;
mod preconditions;
mod rows;
mod socket;
mod support;
