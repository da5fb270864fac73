//! The query language: read from JSON, evaluated in memory, compiled to SQL.

pub mod expressions;
