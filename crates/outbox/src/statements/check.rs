//! Reading what a table has and what the role may do with it.

pg::statements! {
    /// Finds out if the role may call a function.
    FUNCTION_RIGHT = "outbox.function_right", plan [], "
        SELECT has_function_privilege($1::text, 'EXECUTE') AS found";

    /// Finds out if a table exists.
    TABLE_EXISTS = "outbox.table_exists", plan [], "SELECT to_regclass($1::text) IS NOT NULL AS found";

    /// Lists the indexes of a table.
    INDEXES_OF = "outbox.indexes_of", plan ["pg_index_indrelid_index"], "
        SELECT c.relname::text AS name, i.indisvalid AND i.indisready AS valid,
               coalesce(pg_get_expr(i.indpred, i.indrelid), '') AS predicate,
               ARRAY(SELECT pg_get_indexdef(i.indexrelid, n, true) FROM generate_series(1, i.indnkeyatts) n ORDER BY n) AS columns
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = to_regclass($1::text)";

    /// Lists columns with the types that they have in a table.
    MISSING_COLUMNS = "outbox.missing_columns", plan ["pg_attribute_relid_att"], "
        SELECT n.name, format_type(a.atttypid, NULL) AS found
        FROM unnest($2::text[]) WITH ORDINALITY AS n (name, place)
        LEFT JOIN pg_attribute a ON a.attrelid = to_regclass($1::text) AND a.attname = n.name AND NOT a.attisdropped
        ORDER BY n.place";
}
