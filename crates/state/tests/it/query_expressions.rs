//! The contents of the indexes.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use state::query::Instant;
use state::query::expressions::{IndexType, Member, helper_functions_sql, index_sql};

use crate::query_support::{Database, TABLE, member};

/// The entry of an index of the type for `{"f": <json>}`, as text.
async fn indexed(database: &Database, index_type: IndexType, json: &str) -> Option<String> {
    let expression = index_sql(TABLE, &member("f"), index_type);
    let sql = format!("SELECT (({expression}))::text FROM (SELECT $1::text::jsonb AS value) kv");
    let document = format!("{{\"f\": {json}}}");
    let row = database.client.query_one(&sql, &[&document]).await;
    row.unwrap_or_else(|error| panic!("{index_type:?} of {json}: {error:?}")).get(0)
}

#[test]
fn the_name_of_a_member_is_an_identifier_and_nothing_else() {
    for name in ["a", "_", "A1_", &"x".repeat(1_000)] {
        assert_eq!(Member::new(name).expect(name).as_str(), name);
    }
    for name in ["", "1a", "a-b", "a.b", "a b", "é", "a'", "a\"", "a\0", "a\n", "$a", "a;--"] {
        assert_eq!(Member::new(name), None, "{name:?}");
    }
}

#[tokio::test]
async fn an_index_holds_what_fits_its_type_and_null_for_all_else() {
    use IndexType::{Bigint, Boolean, Date, Int, Numeric, Text, Timestamptz};
    let database = Database::new().await;
    database.execute("SET timezone = 'Asia/Tokyo'; SET datestyle = 'SQL, DMY'").await;
    for (index_type, json, expected) in [
        (Text, r#""abc""#, Some("abc")),
        (Text, r#""""#, Some("")),
        (Text, "1", None),
        (Text, "null", None),
        (Text, r#"["abc"]"#, None),
        (Text, r#"{"a": "b"}"#, None),
        (Numeric, "1.50", Some("1.50")),
        (Numeric, "-3", Some("-3")),
        (Numeric, "1e400", Some(&format!("1{}", "0".repeat(100)))),
        (Numeric, "-1e400", Some(&format!("-1{}", "0".repeat(100)))),
        (Numeric, r#""1""#, None),
        (Numeric, "null", None),
        (Numeric, "[1]", None),
        (Numeric, "true", None),
        (Boolean, "true", Some("true")),
        (Boolean, "false", Some("false")),
        (Boolean, "0", None),
        (Boolean, r#""true""#, None),
        (Int, "2147483647", Some("2147483647")),
        (Int, "-2147483648.0", Some("-2147483648")),
        (Int, "2147483648", None),
        (Int, "1.5", None),
        (Int, "1e131071", None),
        (Int, r#""1""#, None),
        (Bigint, "9223372036854775807", Some("9223372036854775807")),
        (Bigint, "-9223372036854775808", Some("-9223372036854775808")),
        (Bigint, "9223372036854775808", None),
        (Date, r#""2024-02-29""#, Some("29/02/2024")),
        (Date, r#""2023-02-29""#, None),
        (Date, r#""2024-02-29T23:30:00-01:00""#, Some("01/03/2024")),
        (Date, r#""2024-02-29 ""#, None),
        (Date, "20240229", None),
        (Timestamptz, r#""2024-02-29T23:30:00-01:00""#, Some("01/03/2024 09:30:00 JST")),
        (Timestamptz, r#""2024-02-29""#, None),
        (Timestamptz, "1", None),
    ] {
        let found = indexed(&database, index_type, json).await;
        match index_type {
            Numeric => {
                let equal: bool = match expected {
                    None => found.is_none(),
                    Some(expected) => {
                        let found = found.as_deref().unwrap_or_else(|| panic!("{json} is a number"));
                        database.value(&format!("SELECT '{found}'::numeric = '{expected}'::numeric")).await
                    }
                };
                assert!(equal, "{json}: {found:?}");
            }
            _ => assert_eq!(found.as_deref(), expected, "{index_type:?} of {json}"),
        }
    }
}

/// A time, or nearly one: some of its parts are drawn from invalid values.
fn any_time() -> impl Strategy<Value = String> {
    let year =
        select(vec!["2024", "2023", "1900", "2000", "0001", "9999", "0000", "24", "02024", "-001", "20 4"]);
    let month = select(vec!["01", "02", "04", "11", "12", "00", "13", "1"]);
    let day = select(vec!["01", "28", "29", "30", "31", "00", "32", "1"]);
    let clock = select(vec![
        "00:00:00", "23:59:59", "12:34:56", "24:00:00", "23:60:00", "23:59:60", "1:00:00", "00:00",
        "00-00-00",
    ]);
    let fraction = select(vec!["", ".1", ".000001", ".999999", ".1234567", ".", ",5", ".٣"]);
    let zone = select(vec![
        "Z", "+00:00", "-00:00", "+15:59", "-15:59", "+16:00", "+01:60", "z", "", "+0100", " Z", "Z\n",
        "+01", "UTC",
    ]);
    let between = select(vec!["T", "T", "T", "T", "t", " "]);
    (year, month, day, between, clock, fraction, zone).prop_map(
        |(year, month, day, between, clock, fraction, zone)| {
            format!("{year}-{month}-{day}{between}{clock}{fraction}{zone}")
        },
    )
}

#[test]
fn a_time_is_the_same_instant_here_and_in_the_database_whatever_its_settings() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let database = runtime.block_on(Database::new());
    runtime.block_on(database.execute("SET timezone = 'Asia/Tokyo'; SET datestyle = 'SQL, DMY'"));
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let times = std::cell::Cell::new(0);
    let outcome = runner.run(&prop::collection::vec(any_time(), 100), |texts| {
        let sql = "SELECT (extract(epoch FROM kv_rfc3339(t)) * 1000000)::bigint FROM unnest($1::text[]) WITH ORDINALITY u(t, n) ORDER BY n";
        let rows = runtime.block_on(database.client.query(sql, &[&texts])).expect("no text is an error");
        for (text, row) in texts.iter().zip(rows) {
            let found = Instant::parse(text).map(|instant| instant.as_micros());
            times.set(times.get() + u32::from(found.is_some()));
            prop_assert_eq!(row.get::<_, Option<i64>>(0), found, "{}", text);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(times.get() > 100, "some are times: {}", times.get());
}

#[tokio::test]
async fn no_document_is_too_large_or_too_strange_for_any_index() {
    let mut database = Database::new().await;
    for index_type in IndexType::ALL {
        database.index("f", index_type).await;
    }
    // Without repetition, so that compression has no effect.
    let noise: String =
        database.value("SELECT string_agg(md5(n::text), '') FROM generate_series(1, 4000) n").await;
    let wide: String = (0..3_000_u32).filter_map(|n| char::from_u32(0x2_0000 + n * 7 % 40_000)).collect();
    let digits: String = noise.chars().filter(char::is_ascii_digit).take(16_000).collect();
    let values = [
        format!("\"{noise}\""),
        format!("\"{wide}\""),
        "\"\u{10ffff}\"".to_owned(),
        format!("9{digits}"),
        format!("0.{digits}"),
        "1e131071".to_owned(),
        "-1e131071".to_owned(),
        "1e-16383".to_owned(),
        "[1, \"a\"]".to_owned(),
        "{\"f\": 1}".to_owned(),
        "null".to_owned(),
        "\"0000-01-01T00:00:00Z\"".to_owned(),
        "\"2023-02-31T00:00:00Z\"".to_owned(),
        "\"9999-12-31T23:59:59.999999-15:59\"".to_owned(),
        "\"0001-01-01T00:00:00+15:59\"".to_owned(),
    ];
    for (at, value) in values.iter().enumerate() {
        database.put(&at.to_string(), &format!("{{\"f\": {value}}}")).await;
        database.put(&format!("bare {at}"), value).await;
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM kv").await, 2 * values.len() as i64);
}

#[tokio::test]
async fn the_helper_is_made_once_and_restored_if_it_was_changed() {
    let database = Database::new().await;
    let version = "SELECT xmin::text FROM pg_proc WHERE proname = 'kv_rfc3339'";
    let first: String = database.value(version).await;
    database.execute(&helper_functions_sql(TABLE)).await;
    assert_eq!(
        database.value::<String>(version).await,
        first,
        "nothing is written where nothing is to change"
    );
    database
        .execute(
            "CREATE OR REPLACE FUNCTION kv_rfc3339(written text) RETURNS timestamptz
             LANGUAGE sql IMMUTABLE AS 'SELECT NULL::timestamptz'",
        )
        .await;
    database.execute(&helper_functions_sql(TABLE)).await;
    let epoch: bool =
        database.value("SELECT kv_rfc3339('1970-01-01T01:00:00+01:00') = 'epoch'::timestamptz").await;
    assert!(epoch);
}
