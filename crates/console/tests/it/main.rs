//! The console on stores in memory, as browsers meet it: signing in, forms, headers, pages.

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
