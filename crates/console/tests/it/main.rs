//! The console on stores in memory, as browsers meet it: signing in, forms, headers, pages.

mod forms;
mod headers;
mod overview;
mod sign_in;
mod support;
