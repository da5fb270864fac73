//! Parameters of a statement in plain SQL, each with its SQL type.
//!
//! A parameter is encoded in PostgreSQL's wire format once, when it is created: an array costs one buffer,
//! whatever its length (ADR 0016). The driver then compares its type with the type that the server inferred
//! from the cast in the statement (`$1::text[]`), so that a mismatch is an error and never garbage.

use std::error::Error;
use std::sync::Arc;

use ambient::Timestamp;
use bytes::BytesMut;
use chrono::{DateTime, Utc};
use tokio_postgres::types::{IsNull, Kind, ToSql, Type};

use crate::RawTimestamp;

/// A value and its SQL type.
#[derive(Clone, Debug)]
pub struct Parameter {
    of_type: Type,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Null,
    /// The value in the server's wire format.
    Encoded(BytesMut),
    /// A text that several owners share.
    Shared(Arc<str>),
}

impl Parameter {
    fn encode(of_type: Type, value: &(impl ToSql + Sync)) -> Self {
        let mut wire = BytesMut::new();
        // Cannot fail: a batch is far below the format's limit of two gigabytes, and each function of this
        // module names the type of its value.
        let is_null = value.to_sql(&of_type, &mut wire).expect("a value within the format's limits");
        let value = if matches!(is_null, IsNull::Yes) { Value::Null } else { Value::Encoded(wire) };
        Self { of_type, value }
    }

    fn array<T: ToSql + Sync>(of_type: Type, elements: impl IntoIterator<Item = T>) -> Self {
        Self::encode(of_type, &elements.into_iter().collect::<Vec<T>>())
    }

    /// The SQL type.
    pub fn of_type(&self) -> Type {
        self.of_type.clone()
    }
}

impl ToSql for Parameter {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match &self.value {
            Value::Null => return Ok(IsNull::Yes),
            Value::Encoded(wire) => out.extend_from_slice(wire),
            Value::Shared(text) => out.extend_from_slice(text.as_bytes()),
        }
        Ok(IsNull::No)
    }

    // The type depends on the value: see `to_sql_checked`.
    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        if *ty != self.of_type {
            return Err(format!("the statement has a {ty} where a {} is bound", self.of_type).into());
        }
        self.to_sql(ty, out)
    }
}

/// The parameters of a text that is composed, numbered in the order in which they are added.
#[derive(Clone, Default, Debug)]
pub struct Parameters(Vec<Parameter>);

impl Parameters {
    /// Adds a parameter and returns its place in the text, with its type: `$1::text`. The text must contain
    /// it, because the server takes the type of a parameter from its cast.
    pub fn add(&mut self, parameter: Parameter) -> String {
        let of_type = match parameter.of_type.kind() {
            Kind::Array(element) => format!("{element}[]"),
            _ => parameter.of_type.to_string(),
        };
        self.0.push(parameter);
        format!("${}::{of_type}", self.0.len())
    }
}

impl IntoIterator for Parameters {
    type Item = Parameter;
    type IntoIter = std::vec::IntoIter<Parameter>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// One `text`.
pub fn text(value: impl AsRef<str>) -> Parameter {
    Parameter::encode(Type::TEXT, &value.as_ref())
}

/// One `text` that may be NULL.
pub fn optional_text(value: Option<impl AsRef<str>>) -> Parameter {
    Parameter::encode(Type::TEXT, &value.as_ref().map(AsRef::as_ref))
}

/// One `text` that is not copied before it is sent.
pub fn shared_text(value: Arc<str>) -> Parameter {
    Parameter { of_type: Type::TEXT, value: Value::Shared(value) }
}

/// One `boolean`.
pub fn boolean(value: bool) -> Parameter {
    Parameter::encode(Type::BOOL, &value)
}

/// One `bigint`.
pub fn bigint(value: i64) -> Parameter {
    Parameter::encode(Type::INT8, &value)
}

/// One `bigint` that may be NULL.
pub fn optional_bigint(value: Option<i64>) -> Parameter {
    Parameter::encode(Type::INT8, &value)
}

/// A `LIMIT` or another number of rows, as a `bigint`.
pub fn rows(count: usize) -> Parameter {
    bigint(i64::try_from(count).unwrap_or(i64::MAX))
}

/// One `bytea`.
pub fn bytea(value: impl AsRef<[u8]>) -> Parameter {
    Parameter::encode(Type::BYTEA, &value.as_ref())
}

/// One `uuid`, from its sixteen bytes.
pub fn uuid(value: [u8; 16]) -> Parameter {
    Parameter { of_type: Type::UUID, value: Value::Encoded(BytesMut::from(&value[..])) }
}

/// One `timestamptz`.
pub fn instant(value: Timestamp) -> Parameter {
    Parameter::encode(Type::TIMESTAMPTZ, &DateTime::<Utc>::from(value))
}

/// One `timestamptz` that may be NULL.
pub fn optional_instant(value: Option<Timestamp>) -> Parameter {
    Parameter::encode(Type::TIMESTAMPTZ, &value.map(DateTime::<Utc>::from))
}

/// One `timestamptz`, infinities included.
pub fn raw_instant(value: RawTimestamp) -> Parameter {
    Parameter { of_type: Type::TIMESTAMPTZ, value: Value::Encoded(BytesMut::from(&value.to_wire()[..])) }
}

/// A `text[]`, from owned or borrowed strings. For a `jsonb[]` the statement casts it: `$1::text[]::jsonb[]`.
pub fn texts<S: ToSql + Sync + AsRef<str>>(values: impl IntoIterator<Item = S>) -> Parameter {
    Parameter::array(Type::TEXT_ARRAY, values)
}

/// A `text[]` that may contain NULL.
pub fn optional_texts<S: ToSql + Sync + AsRef<str>>(
    values: impl IntoIterator<Item = Option<S>>,
) -> Parameter {
    Parameter::array(Type::TEXT_ARRAY, values)
}

/// A `bytea[]`.
pub fn byteas<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Parameter {
    Parameter::array(Type::BYTEA_ARRAY, values)
}

/// A `bigint[]`.
pub fn bigints(values: impl IntoIterator<Item = i64>) -> Parameter {
    Parameter::array(Type::INT8_ARRAY, values)
}

/// A `uuid[]`; each element is given as its sixteen bytes.
pub fn uuids(values: impl IntoIterator<Item = [u8; 16]>) -> Parameter {
    let values: Vec<[u8; 16]> = values.into_iter().collect();
    Parameter::array(Type::UUID_ARRAY, values.iter().map(|value| &value[..]))
}

/// A `timestamptz[]`.
pub fn instants(values: impl IntoIterator<Item = Timestamp>) -> Parameter {
    Parameter::array(Type::TIMESTAMPTZ_ARRAY, values.into_iter().map(DateTime::<Utc>::from))
}

/// A `timestamptz[]` that may contain NULL.
pub fn optional_instants(values: impl IntoIterator<Item = Option<Timestamp>>) -> Parameter {
    let values = values.into_iter().map(|value| value.map(DateTime::<Utc>::from));
    Parameter::array(Type::TIMESTAMPTZ_ARRAY, values)
}

/// A `timestamptz[]`, infinities included.
pub fn raw_instants(values: impl IntoIterator<Item = RawTimestamp>) -> Parameter {
    let values: Vec<[u8; 8]> = values.into_iter().map(RawTimestamp::to_wire).collect();
    Parameter::array(Type::TIMESTAMPTZ_ARRAY, values.iter().map(|value| &value[..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_sent_only_as_the_type_that_it_was_created_with() {
        let mut wire = BytesMut::new();
        let parameter = texts(["a"]);
        assert!(parameter.to_sql_checked(&Type::TEXT_ARRAY, &mut wire).is_ok());
        let error =
            parameter.to_sql_checked(&Type::INT8_ARRAY, &mut wire).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("the statement has a _int8 where a _text is bound"));
    }

    #[test]
    fn a_shared_text_has_the_wire_format_of_a_text() {
        let encoded = |parameter: Parameter| {
            let mut wire = BytesMut::new();
            parameter.to_sql_checked(&Type::TEXT, &mut wire).expect("a text");
            wire
        };
        assert_eq!(encoded(shared_text("ü€😀".into())), encoded(text("ü€😀")));
    }

    #[test]
    fn a_parameter_that_is_added_has_its_number_and_type_in_the_text() {
        let mut parameters = Parameters::default();
        let places = [bigint(1), texts(["a"]), uuid([0; 16])].map(|parameter| parameters.add(parameter));
        assert_eq!(places, ["$1::int8", "$2::text[]", "$3::uuid"]);
    }

    #[test]
    fn a_value_that_is_absent_is_null() {
        for parameter in [optional_text(None::<&str>), optional_bigint(None), optional_instant(None)] {
            let is_null = parameter.to_sql(&parameter.of_type(), &mut BytesMut::new()).expect("encodes");
            assert!(matches!(is_null, IsNull::Yes));
        }
    }
}
