//! The SQL expressions of a member, for indexes and for the queries that use them: the planner uses an index
//! only for exactly its own expression.
//!
//! No expression ever raises an error, whatever a document contains: a value of another type is NULL. No
//! index entry exceeds the limit of a B-tree: texts are cut and numbers are rounded, in a way that keeps the
//! order. So a query compares the indexed expression as a necessary condition, and the exact value in
//! addition, and also finds values that were cut.

use std::sync::Arc;

use pg::parameter::{self, Parameters};

use crate::json::Number;

/// The column of the documents' values.
pub(crate) const VALUE: &str = "\"value\"";
/// The number of characters of a text that are indexed: each has at most four bytes, and an entry is limited
/// to 2,704.
const INDEXED_CHARACTERS: usize = 600;
/// The power of ten at which indexed numbers are clamped, on both sides of zero.
const INDEXED_NUMBER_POWER: i32 = 100;
/// The indexed digits after the decimal point.
const INDEXED_SCALE: u16 = 50;

/// The name of a member: `^[a-zA-Z_][a-zA-Z0-9_]*$`, so that it may stand in the text of a statement.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Member(Arc<str>);

impl Member {
    /// Returns `None` if the name contains other characters than ASCII letters, digits and `_`, or starts
    /// with a digit.
    pub fn new(name: &str) -> Option<Self> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let begins_well = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        (begins_well && name.bytes().all(is_part)).then(|| Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The SQL type under which a member is indexed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IndexType {
    /// Strings, by their bytes.
    Text,
    /// Numbers.
    Numeric,
    /// Booleans.
    Boolean,
    /// Strings that are RFC 3339 times, as instants.
    Timestamptz,
    /// Numbers that are integers of four bytes. Only for clients' own SQL: no filter uses such an index.
    Int,
    /// Numbers that are integers of eight bytes. Only for clients' own SQL.
    Bigint,
    /// Strings that are dates or times, by their day in UTC. Only for clients' own SQL.
    Date,
}

impl IndexType {
    /// All types.
    pub const ALL: [Self; 7] =
        [Self::Text, Self::Numeric, Self::Boolean, Self::Timestamptz, Self::Int, Self::Bigint, Self::Date];

    /// Parses the name of a type.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|index_type| index_type.as_str() == name)
    }

    /// The name of the type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Numeric => "numeric",
            Self::Boolean => "boolean",
            Self::Timestamptz => "timestamptz",
            Self::Int => "int",
            Self::Bigint => "bigint",
            Self::Date => "date",
        }
    }
}

/// A member of a document: the document's expression, and the name. Its expressions are texts without
/// parameters.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    /// The `jsonb`, as SQL that needs no brackets, such as a column. It must contain no external input.
    pub document: &'a str,
    /// The member.
    pub member: &'a Member,
    /// The function that parses times: see [`helper_name`].
    pub helper: &'a str,
}

impl Path<'_> {
    /// The member; NULL if it is missing, or if the document is not an object.
    pub fn value(&self) -> String {
        format!("({})", self.access())
    }

    /// The string, compared by its bytes.
    pub fn string(&self) -> String {
        by_bytes(&self.text())
    }

    /// The number.
    pub fn number(&self) -> String {
        self.if_type("number", &self.numeric())
    }

    /// The boolean.
    pub fn boolean(&self) -> String {
        self.if_type("boolean", &format!("CAST({} AS boolean)", self.access()))
    }

    /// The instant.
    pub fn instant(&self) -> String {
        self.read_time(&self.text())
    }

    /// The indexed expression of the member for a type.
    pub fn indexed(&self, index_type: IndexType) -> String {
        match index_type {
            IndexType::Text => by_bytes(&format!("left({}, {INDEXED_CHARACTERS})", self.text())),
            // Inside the condition: LEAST and GREATEST ignore NULL.
            IndexType::Numeric => {
                let limit = |sign: &str| format!("CAST('{sign}1e{INDEXED_NUMBER_POWER}' AS numeric)");
                let within = format!("LEAST(GREATEST({}, {}), {})", self.numeric(), limit("-"), limit(""));
                self.if_type("number", &format!("trunc({within}, {INDEXED_SCALE})"))
            }
            IndexType::Boolean => self.boolean(),
            IndexType::Timestamptz => self.instant(),
            IndexType::Int => self.integer("integer", i32::MIN.into(), i32::MAX.into()),
            IndexType::Bigint => self.integer("bigint", i64::MIN, i64::MAX),
            IndexType::Date => self.date(),
        }
    }

    /// The member without brackets. The name is an identifier and needs no escapes.
    fn access(&self) -> String {
        format!("{} -> '{}'", self.document, self.member.as_str())
    }

    fn if_type(&self, name: &str, then: &str) -> String {
        format!("(CASE WHEN jsonb_typeof({}) = '{name}' THEN {then} END)", self.access())
    }

    fn text(&self) -> String {
        self.if_type("string", &format!("{} ->> '{}'", self.document, self.member.as_str()))
    }

    /// The member cast to `numeric`, for values that are numbers.
    fn numeric(&self) -> String {
        format!("CAST({} AS numeric)", self.access())
    }

    fn read_time(&self, text: &str) -> String {
        format!("{}({text})", self.helper)
    }

    fn integer(&self, sql_type: &str, min: i64, max: i64) -> String {
        let number = self.numeric();
        let limit = |limit: i64| format!("CAST('{limit}' AS numeric)");
        let (min, max) = (limit(min), limit(max));
        let fits = format!("{number} >= {min} AND {number} <= {max} AND {number} = trunc({number})");
        self.if_type("number", &format!("CASE WHEN {fits} THEN CAST({number} AS {sql_type}) END"))
    }

    fn date(&self) -> String {
        let text = self.text();
        let (as_time, as_day) = (self.read_time(&text), self.read_time(&format!("{text} || 'T00:00:00Z'")));
        let instant = format!("COALESCE({as_time}, {as_day})");
        format!("CAST(timezone('UTC', {instant}) AS date)")
    }
}

/// A text, compared by its bytes whatever the collation of the database: a column, a parameter, a function or
/// a `CASE`.
pub(crate) fn by_bytes(text: &str) -> String {
    format!("({text} COLLATE \"C\")")
}

/// The indexed form of a text: if one text is before another, its indexed form is not after the other's.
pub(crate) fn cut_as_indexed(text: &str) -> String {
    text.chars().take(INDEXED_CHARACTERS).collect()
}

/// The indexed form of a number, which keeps the order in the same way.
pub(crate) fn number_as_indexed(number: &Number) -> Number {
    number.cut(INDEXED_NUMBER_POWER, INDEXED_SCALE)
}

/// Returns true if an index distinguishes this text from all others.
pub(crate) fn is_indexed_whole(text: &str) -> bool {
    text.chars().count() < INDEXED_CHARACTERS
}

/// The expression of an index on a member of the table's column `value`, to be written within brackets in
/// `CREATE INDEX`. Its only external inputs are the member and the name of the table.
pub fn index_sql(table: &str, member: &Member, index_type: IndexType) -> String {
    Path { document: VALUE, member, helper: &helper_name(table) }.indexed(index_type)
}

/// The name of the function in the table's schema that parses times, `(text) → timestamptz`.
pub fn helper_name(table: &str) -> String {
    format!("{table}_rfc3339")
}

/// The body of the function that parses a text as an RFC 3339 time of the form that queries accept, as this
/// crate does ([`super::Instant::parse`]); NULL for any other text.
///
/// The cast is STABLE, because other forms depend on settings. This form does not, so the function may be
/// IMMUTABLE. Character classes would depend on the collation, and a date that does not exist would raise an
/// error.
pub(crate) const HELPER_BODY: &str = "
DECLARE
    year integer;
    days integer;
BEGIN
    IF octet_length(written) > 32 OR written COLLATE \"C\" !~ ('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])'
        || 'T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?(Z|[+-](0[0-9]|1[0-5]):[0-5][0-9])$') THEN
        RETURN NULL;
    END IF;
    year := substr(written, 1, 4);
    days := CASE substr(written, 6, 2)
        WHEN '02' THEN CASE WHEN year % 4 = 0 AND (year % 100 <> 0 OR year % 400 = 0) THEN 29 ELSE 28 END
        WHEN '04' THEN 30 WHEN '06' THEN 30 WHEN '09' THEN 30 WHEN '11' THEN 30 ELSE 31 END;
    IF year = 0 OR substr(written, 9, 2)::integer > days THEN
        RETURN NULL;
    END IF;
    RETURN written::timestamptz;
END";

/// Creates the function of [`helper_name`], if it is missing or differs, in the first schema of the search
/// path. The indexes on times depend on it. Two concurrent runs may fail; run it under a lock.
pub fn helper_functions_sql(table: &str) -> String {
    let name = helper_name(table);
    format!(
        "DO $do$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_proc WHERE oid = to_regprocedure('\"{name}\"(text)') AND prosrc = $body${HELPER_BODY}$body$) THEN
        CREATE OR REPLACE FUNCTION \"{name}\"(written text) RETURNS timestamptz
            LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $body${HELPER_BODY}$body$;
    END IF;
END $do$;"
    )
}

/// Adds a `numeric`.
pub(crate) fn add_number(parameters: &mut Parameters, number: &Number) -> String {
    parameters.add(parameter::text(number.to_scientific())) + "::numeric"
}

/// Adds a `jsonb` from a JSON text.
pub(crate) fn add_json(parameters: &mut Parameters, text: &str) -> String {
    parameters.add(parameter::text(text)) + "::jsonb"
}
