//! The store as clients meet it over HTTP.

mod access;
mod bodies;
mod drawn;
mod keys;
mod outages;
mod preconditions;
mod rows;
mod socket;
mod support;
