//! Tests of the console on stores in memory, through a simulated browser: sign-in, forms, headers, pages.

mod changes;
mod forms;
mod headers;
mod interrupted;
mod keys;
mod overview;
mod pages;
mod rows;
mod sign_in;
mod support;
