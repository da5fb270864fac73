//! The installation of a schema.

use store_postgres::Installation;

use super::*;

fn proposed(n: u32) -> Installation {
    Installation { id: format!("id-{n}"), intents_stream: format!("stream-{n}") }
}

#[tokio::test]
async fn of_several_replicas_that_start_at_once_the_first_decides_the_stream_of_the_schema() {
    let world = World::new().await;
    let (one, two, three) = (proposed(1), proposed(2), proposed(3));
    let (first, second, third) = tokio::join!(
        world.store.installation(&one),
        world.store.installation(&two),
        world.store.installation(&three)
    );
    let decided = first.expect("PostgreSQL is there");
    assert!([one, two, three].contains(&decided));
    assert_eq!(
        [second.expect("it is there"), third.expect("it is there")],
        [decided.clone(), decided.clone()]
    );
    assert_eq!(world.store.installation(&proposed(4)).await.expect("PostgreSQL is there"), decided);
    assert_eq!(world.column("SELECT id FROM installation").await, [decided.id]);
}

#[tokio::test]
async fn there_is_no_second_row() {
    let world = World::new().await;
    world.store.installation(&proposed(1)).await.expect("PostgreSQL is there");
    let client = world.database.client().await;
    for only_row in ["true", "false"] {
        let insert = format!("INSERT INTO installation VALUES ({only_row}, 'id-2', 'stream-2', now())");
        client.batch_execute(&insert).await.expect_err("it is refused");
    }
}
