//! JSON documents under keys, in one PostgreSQL table, with conditional writes and a query language.
//!
//! **The promise.** Every write is one atomic step that raises the document's version: of many writers that
//! expect the same version or the same status one succeeds, and the others learn why they failed. No input of
//! a client can cause an outage: it leads to an outcome or to an error that names it.
//!
//! [`Store`] has the operations. [`PostgresStore`] and `MemoryStore` (feature `memory`) implement them and
//! pass one contract suite. [`PostgresStore::setup`] creates the table or takes over a table of the original,
//! and builds the declared indexes. [`query`] is the query language, [`json`] the JSON types that it and the
//! stores use.
//!
//! The crate deliberately lacks transactions over several documents, except within a transaction of the
//! caller ([`put_many_in`]); documents that expire; and change notifications.

mod condition;
mod document;
mod error;
mod heavy;
pub mod http;
mod index_spec;
pub mod json;
mod key;
mod members;
#[cfg(feature = "memory")]
mod memory;
mod postgres;
pub mod query;
mod room;
mod schema;
mod setup;
mod statements;
mod status;
mod store;
mod table;

pub use condition::{Delete, Patch, StatusCondition, VersionCondition, Write, WriteConditions};
pub use document::{Document, Value, Version};
pub use error::StateError;
pub use index_spec::{IndexSpec, IndexSpecErrors, MAX_DECLARED_INDEXES};
pub use key::{Key, MAX_KEY_BYTES, Prefix};
pub use members::{DocumentMembers, MemberValue};
#[cfg(feature = "memory")]
pub use memory::MemoryStore;
pub use postgres::{
    MAX_VALUE_BYTES, PostgresStore, delete_many_in, get_many_in, insert_many_in, lock_many_in, put_many_in,
};
pub use query::compile::QUERY_PARAMETERS;
pub use schema::{required_grants, schema_sql};
pub use setup::missing_rights;
pub use statements::{PLANNER_PARAMETERS, statements_in};
pub use status::{Advance, Status, advance_status};
pub use store::{KeyPage, MAX_ANSWER_BYTES, Page, Store};
pub use table::{MAX_TABLE_NAME_BYTES, TableName, TableNameError};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
