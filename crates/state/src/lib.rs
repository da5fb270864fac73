//! Documents of JSON under keys, in one PostgreSQL table, with conditional writes and a query language.
//!
//! [`Store`] has the operations. `PostgresStore` and `MemoryStore` implement them and pass one contract suite.

mod condition;
mod document;
mod error;
pub mod http;
pub mod json;
mod key;
mod store;

pub use condition::{Delete, Patch, StatusCondition, VersionCondition, Write, WriteConditions};
pub use document::{Document, Value, Version};
pub use error::StateError;
pub use key::{Key, MAX_KEY_BYTES, Prefix};
pub use store::{KeyPage, Page, Store};
