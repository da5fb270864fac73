//! The SQL expressions of a member, for indexes and for the queries that use them: the planner takes an index only for the very
//! expression that it was made of.
//!
//! No expression ever raises an error, whatever a document holds: what is of another type is NULL. No index entry is larger than
//! a B-tree takes: a text is cut, and a number is rounded, in a way that keeps the order. So a query compares what is indexed as
//! a necessary condition, and the exact value beside it, and finds what was cut, too.

use std::sync::Arc;

use pg::bind;
use sea_query::{BinOper, CaseStatement, Expr, ExprTrait, Func, PostgresQueryBuilder, Query};

/// The characters of a text that are indexed: at most four bytes each, and an entry ends at 2,704.
const INDEXED_CHARACTERS: i32 = 600;
/// Numbers beyond it, and below its negative, are indexed as if they were it.
const INDEXED_NUMBER_LIMIT: &str = "1e100";
/// The digits after the decimal point that are indexed.
const INDEXED_SCALE: i32 = 50;

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

/// A member of a document: the column that holds the document, and the name.
#[derive(Clone, Debug)]
pub struct Path<'a> {
    /// The `jsonb`.
    pub document: Expr,
    /// The member.
    pub member: &'a Member,
    /// The function that reads times: see [`helper_name`].
    pub helper: &'a str,
}

impl Path<'_> {
    fn name(&self) -> Expr {
        Expr::Constant(self.member.as_str().into())
    }

    /// The member; NULL if there is none, or if the document is no object.
    pub fn value(&self) -> Expr {
        self.document.clone().binary(BinOper::Custom("->"), self.name())
    }

    fn if_type(&self, name: &'static str, then: Expr) -> Expr {
        let is_of_type =
            Expr::expr(Func::cust("jsonb_typeof").arg(self.value())).eq(Expr::Constant(name.into()));
        CaseStatement::new().case(is_of_type, then).into()
    }

    fn text(&self) -> Expr {
        self.if_type("string", self.document.clone().binary(BinOper::Custom("->>"), self.name()))
    }

    /// The string, compared by its bytes.
    pub fn string(&self) -> Expr {
        by_bytes(self.text())
    }

    /// The number.
    pub fn number(&self) -> Expr {
        self.if_type("number", self.value().cast_as("numeric"))
    }

    /// The boolean.
    pub fn boolean(&self) -> Expr {
        self.if_type("boolean", self.value().cast_as("boolean"))
    }

    /// The instant.
    pub fn instant(&self) -> Expr {
        self.read_time(self.text())
    }

    fn read_time(&self, text: Expr) -> Expr {
        Expr::expr(Func::cust(self.helper.to_owned()).arg(text))
    }

    fn integer(&self, sql_type: &'static str, min: i64, max: i64) -> Expr {
        let number = || self.value().cast_as("numeric");
        let limit = |limit: i64| Expr::Constant(limit.to_string().into()).cast_as("numeric");
        let is_whole = number().eq(Func::cust("trunc").arg(number()));
        let fits = number().gte(limit(min)).and(number().lte(limit(max))).and(is_whole);
        self.if_type("number", CaseStatement::new().case(fits, number().cast_as(sql_type)).into())
    }

    fn date(&self) -> Expr {
        let midnight = self.text().binary(BinOper::Custom("||"), Expr::Constant("T00:00:00Z".into()));
        let instant = Func::coalesce([self.read_time(self.text()), self.read_time(midnight)]);
        let in_utc = Func::cust("timezone").arg(Expr::Constant("UTC".into())).arg(instant);
        Expr::expr(in_utc).cast_as("date")
    }

    /// What an index of the type has of the member.
    pub fn indexed(&self, index_type: IndexType) -> Expr {
        match index_type {
            IndexType::Text => indexed_text(self.text()),
            // Within the condition: LEAST and GREATEST ignore NULL.
            IndexType::Numeric => self.if_type("number", indexed_number(self.value().cast_as("numeric"))),
            IndexType::Boolean => self.boolean(),
            IndexType::Timestamptz => self.instant(),
            IndexType::Int => self.integer("integer", i32::MIN.into(), i32::MAX.into()),
            IndexType::Bigint => self.integer("bigint", i64::MIN, i64::MAX),
            IndexType::Date => self.date(),
        }
    }
}

/// A text, compared by its bytes whatever the collation of the database: a column, a parameter, a function or a `CASE`.
pub(crate) fn by_bytes(text: Expr) -> Expr {
    Expr::cust_with_expr("($1 COLLATE \"C\")", text)
}

/// What an index has of a text: if one text is before another, it is not behind it here.
pub(crate) fn indexed_text(text: Expr) -> Expr {
    let cut = Func::cust("left").arg(text).arg(Expr::Constant(INDEXED_CHARACTERS.into()));
    by_bytes(Expr::expr(cut))
}

/// The same for a text that is known here.
pub(crate) fn cut_as_indexed(text: &str) -> String {
    text.chars().take(INDEXED_CHARACTERS as usize).collect()
}

/// What an index has of a number, which must not be NULL: if one number is less than another, it is not greater here.
pub(crate) fn indexed_number(number: Expr) -> Expr {
    let limit =
        |sign: &str| Expr::Constant(format!("{sign}{INDEXED_NUMBER_LIMIT}").into()).cast_as("numeric");
    let within = Func::least([Func::greatest([number, limit("-")]).into(), limit("")]);
    Expr::expr(Func::cust("trunc").arg(within).arg(Expr::Constant(INDEXED_SCALE.into())))
}

/// The expression of an index on a member of the table's column `value`, to be written within brackets in `CREATE INDEX`.
/// Nothing in it comes from outside but the member and the name of the table.
pub fn index_sql(table: &str, member: &Member, index_type: IndexType) -> String {
    let path = Path { document: Expr::col("value"), member, helper: &helper_name(table) };
    let text = Query::select().expr(path.indexed(index_type)).to_string(PostgresQueryBuilder);
    text.trim_start_matches("SELECT ").to_owned()
}

/// The name of the function in the table's schema that reads times, `(text) → timestamptz`.
pub fn helper_name(table: &str) -> String {
    format!("{table}_rfc3339")
}

/// The instant that a text names if it is an RFC 3339 time of the form that the queries take, as they are read here
/// ([`super::Instant::parse`]); NULL for any other text.
///
/// The cast is STABLE, because other forms depend on settings. This form does not, so the function may be IMMUTABLE. Character
/// classes would depend on the collation, and a date that does not exist would be an error.
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

/// Makes the function of [`helper_name`], if it is not there or another one, in the first schema of the search path. The indexes
/// on times depend on it. Two at once may fail; run it under a lock.
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

/// A `numeric` of a text that is one.
pub(crate) fn bind_number(digits: String) -> Expr {
    bind::text(digits).cast_as("numeric")
}

/// A `jsonb` of a text that is one.
pub(crate) fn bind_json(text: String) -> Expr {
    bind::text(text).cast_as("jsonb")
}
