//! Tests of the console, each on a PostgreSQL database of its own and on the other ports in memory, through a
//! simulated browser: sign-in, forms, headers, pages.

mod actions;
mod erase;
mod find;
mod forms;
mod headers;
mod holds;
mod interrupted;
mod keys;
mod operations;
mod overview;
mod pages;
mod resubmit;
mod rows;
mod sign_in;
mod support;
