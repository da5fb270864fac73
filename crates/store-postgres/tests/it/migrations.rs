//! The encodings of databases that are supported.

use std::error::Error;

use super::*;

#[tokio::test]
async fn a_database_that_cannot_hold_every_text_is_refused_with_what_to_do() {
    let database = TestDatabase::new().await;
    let client = database.client().await;
    // The first cannot store the migrations' own comments; the second can, but not a Chinese key.
    for encoding in ["LATIN1", "WIN1252", "SQL_ASCII"] {
        let name = format!("{}_{}", database.name(), encoding.to_lowercase());
        let create = format!(
            "CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
        );
        client.batch_execute(&create).await.expect("it can be made");
        let dsn = Dsn::parse(&database.dsn().replace(database.name(), &name)).expect("a connection string");
        let error = store_postgres::migrate(&dsn, &[]).await.expect_err("it is refused");
        let cause = error.source().expect("it has a cause").to_string();
        assert!(
            cause.contains(&format!("encoding is {encoding}")) && cause.contains("ENCODING 'UTF8'"),
            "{cause}"
        );
    }
}
