//! The SQL expressions of a member, for indexes and for the queries that use them: the planner takes an index
//! only for the very expression that it was made of.
//!
//! No expression ever raises an error, whatever a document holds: what is of another type is NULL. No index
//! entry is larger than a B-tree takes: a text is cut, and a number is rounded, in a way that keeps the
//! order. So a query compares what is indexed as a necessary condition, and the exact value beside it, and
//! finds what was cut, too.
//!
//! They are written as texts: building each from its parts for every query would double the time in which a
//! statement is made.

use std::sync::Arc;

use pg::bind;
use sea_query::{Expr, ExprTrait};

use crate::json::Number;

/// The column of the documents.
pub(crate) const VALUE: &str = "\"value\"";
/// The characters of a text that are indexed: at most four bytes each, and an entry ends at 2,704.
const INDEXED_CHARACTERS: usize = 600;
/// Numbers beyond this power of ten, and below its negative, are indexed as if they were it.
const INDEXED_NUMBER_POWER: i32 = 100;
/// The digits after the decimal point that are indexed.
const INDEXED_SCALE: u16 = 50;

/// The name of a member: `^[a-zA-Z_][a-zA-Z0-9_]*$`, so that it may stand in the text of a statement.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Member(Arc<str>);

impl Member {
    /// `None` if the name has anything but ASCII letters, digits and `_`, or begins with a digit.
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

/// As what a member is indexed.
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
    /// Numbers that are integers of four bytes. For SQL by hand.
    Int,
    /// Numbers that are integers of eight bytes. For SQL by hand.
    Bigint,
    /// Strings that are dates, or times, of which the day in UTC counts. For SQL by hand.
    Date,
}

impl IndexType {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Text, Self::Numeric, Self::Boolean, Self::Timestamptz, Self::Int, Self::Bigint, Self::Date];

    /// By its name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|index_type| index_type.as_str() == name)
    }

    /// Its name.
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

/// A member of a document: where the document is, and the name. Its expressions are texts without parameters.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    /// The `jsonb`, as SQL that needs no brackets, such as a column. Nothing in it may come from outside.
    pub document: &'a str,
    /// The member.
    pub member: &'a Member,
    /// The function that reads times: see [`helper_name`].
    pub helper: &'a str,
}

impl Path<'_> {
    /// The document.
    pub fn document(&self) -> Expr {
        Expr::cust(self.document.to_owned())
    }

    /// The member; NULL if there is none, or if the document is no object.
    pub fn value(&self) -> Expr {
        Expr::cust(format!("({})", self.value_sql()))
    }

    /// The string, compared by its bytes.
    pub fn string(&self) -> Expr {
        Expr::cust(by_bytes_sql(&self.text_sql()))
    }

    /// The number.
    pub fn number(&self) -> Expr {
        Expr::cust(self.if_type("number", &self.numeric_sql()))
    }

    /// The boolean.
    pub fn boolean(&self) -> Expr {
        Expr::cust(self.boolean_sql())
    }

    /// The instant.
    pub fn instant(&self) -> Expr {
        Expr::cust(self.read_time(&self.text_sql()))
    }

    /// What an index of the type has of the member.
    pub fn indexed(&self, index_type: IndexType) -> Expr {
        Expr::cust(self.indexed_sql(index_type))
    }

    fn indexed_sql(&self, index_type: IndexType) -> String {
        match index_type {
            IndexType::Text => by_bytes_sql(&format!("left({}, {INDEXED_CHARACTERS})", self.text_sql())),
            // Within the condition: LEAST and GREATEST ignore NULL.
            IndexType::Numeric => {
                let limit = |sign: &str| format!("CAST('{sign}1e{INDEXED_NUMBER_POWER}' AS numeric)");
                let within =
                    format!("LEAST(GREATEST({}, {}), {})", self.numeric_sql(), limit("-"), limit(""));
                self.if_type("number", &format!("trunc({within}, {INDEXED_SCALE})"))
            }
            IndexType::Boolean => self.boolean_sql(),
            IndexType::Timestamptz => self.read_time(&self.text_sql()),
            IndexType::Int => self.integer_sql("integer", i32::MIN.into(), i32::MAX.into()),
            IndexType::Bigint => self.integer_sql("bigint", i64::MIN, i64::MAX),
            IndexType::Date => self.date_sql(),
        }
    }

    /// The name needs no escapes: it is an identifier.
    fn value_sql(&self) -> String {
        format!("{} -> '{}'", self.document, self.member.as_str())
    }

    fn if_type(&self, name: &str, then: &str) -> String {
        format!("(CASE WHEN jsonb_typeof({}) = '{name}' THEN {then} END)", self.value_sql())
    }

    fn text_sql(&self) -> String {
        self.if_type("string", &format!("{} ->> '{}'", self.document, self.member.as_str()))
    }

    /// For values that are numbers.
    fn numeric_sql(&self) -> String {
        format!("CAST({} AS numeric)", self.value_sql())
    }

    fn boolean_sql(&self) -> String {
        self.if_type("boolean", &format!("CAST({} AS boolean)", self.value_sql()))
    }

    fn read_time(&self, text: &str) -> String {
        format!("{}({text})", self.helper)
    }

    fn integer_sql(&self, sql_type: &str, min: i64, max: i64) -> String {
        let number = self.numeric_sql();
        let limit = |limit: i64| format!("CAST('{limit}' AS numeric)");
        let (min, max) = (limit(min), limit(max));
        let fits = format!("{number} >= {min} AND {number} <= {max} AND {number} = trunc({number})");
        self.if_type("number", &format!("CASE WHEN {fits} THEN CAST({number} AS {sql_type}) END"))
    }

    fn date_sql(&self) -> String {
        let text = self.text_sql();
        let (as_time, as_day) = (self.read_time(&text), self.read_time(&format!("{text} || 'T00:00:00Z'")));
        let instant = format!("COALESCE({as_time}, {as_day})");
        format!("CAST(timezone('UTC', {instant}) AS date)")
    }
}

fn by_bytes_sql(text: &str) -> String {
    format!("({text} COLLATE \"C\")")
}

/// A text, compared by its bytes whatever the collation of the database: a column, a parameter, a function or
/// a `CASE`.
pub(crate) fn by_bytes(text: Expr) -> Expr {
    Expr::cust_with_expr("($1 COLLATE \"C\")", text)
}

/// What an index has of a text: if one text is before another, it is not behind it here.
pub(crate) fn cut_as_indexed(text: &str) -> String {
    text.chars().take(INDEXED_CHARACTERS).collect()
}

/// The same for a number.
pub(crate) fn number_as_indexed(number: &Number) -> Number {
    number.cut(INDEXED_NUMBER_POWER, INDEXED_SCALE)
}

/// Whether an index distinguishes this text from all others.
pub(crate) fn is_indexed_whole(text: &str) -> bool {
    text.chars().count() < INDEXED_CHARACTERS
}

/// The expression of an index on a member of the table's column `value`, to be written within brackets in
/// `CREATE INDEX`. Nothing in it comes from outside but the member and the name of the table.
pub fn index_sql(table: &str, member: &Member, index_type: IndexType) -> String {
    Path { document: VALUE, member, helper: &helper_name(table) }.indexed_sql(index_type)
}

/// The name of the function in the table's schema that reads times, `(text) → timestamptz`.
pub fn helper_name(table: &str) -> String {
    format!("{table}_rfc3339")
}

/// The instant that a text names if it is an RFC 3339 time of the form that the queries take, as they are
/// read here ([`super::Instant::parse`]); NULL for any other text.
///
/// The cast is STABLE, because other forms depend on settings. This form does not, so the function may be
/// IMMUTABLE. Character classes would depend on the collation, and a date that does not exist would be an
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

/// Makes the function of [`helper_name`], if it is not there or another one, in the first schema of the
/// search path. The indexes on times depend on it. Two at once may fail; run it under a lock.
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

/// A `numeric`.
pub(crate) fn bind_number(number: &Number) -> Expr {
    bind::text(number.to_scientific()).cast_as("numeric")
}

/// A `numeric[]`.
pub(crate) fn bind_numbers(numbers: impl Iterator<Item = Number>) -> Expr {
    bind::texts(numbers.map(|number| number.to_scientific())).cast_as("numeric[]")
}

/// A `jsonb` of a text that is one.
pub(crate) fn bind_json(text: String) -> Expr {
    bind::text(text).cast_as("jsonb")
}
