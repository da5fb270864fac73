//! The arrays of `pg::bind`, encoded in the server's wire format, return unchanged.

use pg::bind;
use sea_query::{Expr, ExprTrait, Func, Query};

use super::*;

/// The elements in the server's text format, `NULL` as `None`.
async fn elements(array: Expr) -> Vec<Option<String>> {
    let database = TestDatabase::new().await;
    let dsn = Dsn::parse(&database.dsn()).expect("the harness gives a connection string");
    let settings =
        PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(5), session: SESSION };
    let pool = PgPool::new(&dsn, settings).expect("a pool");
    let unnested = Expr::expr(Func::cust("UNNEST").arg(array)).cast_as("text");
    let query = Query::select().expr(unnested).take();
    let rows = pool.session("test").await.expect("is there").query(&query).await.expect("an array");
    rows.iter().map(|row| row.get(0)).collect()
}

fn some<const N: usize>(texts: [&str; N]) -> Vec<Option<String>> {
    texts.map(|text| Some(text.to_owned())).to_vec()
}

#[tokio::test]
async fn texts_arrive_byte_for_byte_and_no_text_is_no_row() {
    let texts = ["", "NULL", "a,b", r#"{"x":"\""}"#, "ü€😀", " \n\t"];
    assert_eq!(elements(bind::texts(texts)).await, some(texts));
    assert_eq!(elements(bind::texts::<&str>([])).await, []);
}

#[tokio::test]
async fn numbers_arrive_over_their_whole_range() {
    let numbers = [i64::MIN, -1, 0, 1, i64::MAX];
    assert_eq!(
        elements(bind::bigints(numbers)).await,
        some(numbers.map(|n| n.to_string()).each_ref().map(|s| s.as_str()))
    );
}

#[tokio::test]
async fn times_arrive_to_the_microsecond_and_gaps_stay_gaps() {
    let time = Timestamp::UNIX_EPOCH + Duration::from_micros(253_402_300_799_999_999);
    assert_eq!(
        elements(bind::instants([Timestamp::UNIX_EPOCH, time])).await,
        some(["1970-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"])
    );
    let gap = elements(bind::optional_instants([None, Some(Timestamp::UNIX_EPOCH)])).await;
    assert_eq!(gap, [None, Some("1970-01-01 00:00:00+00".to_owned())]);
}

#[tokio::test]
async fn json_is_parsed_by_the_server() {
    assert_eq!(elements(bind::jsonbs([r#"{"b":1,"a":[ ]}"#])).await, some([r#"{"a": [], "b": 1}"#]));
}
