//! The settings of the sessions that run these statements.

use pg::SessionSettings;

/// The planner's choices are fixed: every statement accesses its rows through an index, in the index's order.
///
/// By default, the planner relies on statistics that are usually out of date: a table was empty when they
/// were taken, a queue is empty most of the time, and a sudden backlog would then be read and sorted whole
/// for every batch (ADR 0005).
pub const SESSION: SessionSettings = SessionSettings {
    application_name: "notification",
    parameters: &[
        ("jit", "off"),
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_bitmapscan", "off"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("enable_sort", "off"),
        ("enable_incremental_sort", "off"),
        ("max_parallel_workers_per_gather", "0"),
    ],
};

/// The settings of [`SESSION`] for reading on behalf of operators and producers: their searches may combine
/// index entries in a bitmap, which is the only way to use the index of recipients.
pub const QUERY_SESSION: SessionSettings = SessionSettings {
    application_name: "notification-queries",
    parameters: &[
        ("jit", "off"),
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("enable_sort", "off"),
        ("enable_incremental_sort", "off"),
        ("max_parallel_workers_per_gather", "0"),
        ("default_transaction_read_only", "on"),
    ],
};
