//! Pages of DELIVERED events of a table in PostgreSQL.

use outbox::{EventTypes, Storage};
use pg::RawTimestamp;

use crate::support::{Db, MINUTE, World};

/// Finds the newest delivered event of these types; returns its time and the number of pages read.
async fn newest(db: &Db, types: &EventTypes) -> (Option<RawTimestamp>, usize) {
    let (mut cursor, mut pages) = (None, 0);
    loop {
        let page = db.storage().newest_delivered(types, cursor).await.expect("no failure");
        pages += 1;
        cursor = page.next;
        if cursor.is_none() {
            return (page.newest, pages);
        }
    }
}

fn only_t() -> EventTypes {
    EventTypes::Only(vec!["t".to_owned()])
}

#[tokio::test]
async fn the_newest_delivered_event_of_a_type_is_found_page_by_page_behind_many_of_others() {
    let db = Db::new().await;
    let now = db.now().await;
    // Half of the other events were delivered at the same moment, more than fit in a page.
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, status, delivered_at)
         SELECT gen_random_uuid(), 'other', '', 'DELIVERED', now() - greatest(n, 12000) * interval '1 microsecond'
         FROM generate_series(1, 24000) n;
         INSERT INTO openoutbox_events (event_id, event_type, payload, status, delivered_at)
         VALUES (gen_random_uuid(), 't', '', 'DELIVERED', now() - interval '1 hour'),
                (gen_random_uuid(), 't', '', 'DELIVERED', now() - interval '2 hours'),
                (gen_random_uuid(), 't', '', 'DELIVERED', now() + interval '2 hours')",
    )
    .await;
    let (found, pages) = newest(&db, &only_t()).await;
    assert_eq!(found, Some((now - MINUTE * 60).into()));
    assert!((2..=4).contains(&pages), "{pages}");
    let in_a_tie = "UPDATE openoutbox_events SET event_type = 't' WHERE event_id =
        (SELECT max(event_id::text)::uuid FROM openoutbox_events WHERE delivered_at = now() - interval '12000 microseconds')";
    db.execute(in_a_tie).await;
    let found = newest(&db, &only_t()).await.0;
    assert_eq!(found, Some((now - std::time::Duration::from_micros(12_000)).into()));
}

#[tokio::test]
async fn the_newest_delivered_event_is_found_by_the_primary_key_without_an_index() {
    let db = Db::without_indexes().await;
    let now = db.now().await;
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, status, delivered_at)
         SELECT gen_random_uuid(), CASE WHEN n <= 10 THEN 't' ELSE 'other' END, '', 'DELIVERED',
                now() - n * interval '1 minute'
         FROM generate_series(1, 24000) n",
    )
    .await;
    assert_eq!(newest(&db, &only_t()).await, (Some((now - MINUTE).into()), 3), "a page has 10,000 rows");
    assert_eq!(newest(&db, &EventTypes::All).await, (Some((now - MINUTE).into()), 3));
    db.execute("DELETE FROM openoutbox_events WHERE event_type = 't'").await;
    assert_eq!(newest(&db, &only_t()).await.0, None);
}

// O-22
#[tokio::test]
async fn a_list_without_an_index_has_events_that_another_program_updates_meanwhile() {
    let db = Db::without_indexes().await;
    // Deleted rows leave room in the first blocks, into which an update moves other rows.
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, status, delivered_at)
         SELECT lpad(n::text, 32, '0')::uuid, 't', convert_to(repeat('x', 1000), 'UTF8'), 'DELIVERED', now()
         FROM generate_series(1, 24000) n;
         DELETE FROM openoutbox_events WHERE event_id <= lpad('5000', 32, '0')::uuid",
    )
    .await;
    db.execute("VACUUM openoutbox_events").await;
    let (mut cursor, mut found) = (None, 0);
    loop {
        let since = RawTimestamp::NEG_INFINITY;
        let page = db.storage().list_delivered(&only_t(), since, cursor, 500).await.expect("no failure");
        found += page.events.len();
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
        db.execute(
            "UPDATE openoutbox_events SET headers = headers WHERE event_id IN
                (SELECT event_id FROM openoutbox_events ORDER BY ctid DESC LIMIT 400)",
        )
        .await;
    }
    assert_eq!(found, 19_000);
}

#[tokio::test]
async fn a_part_of_the_list_counts_events_of_other_types_so_that_it_ends_however_rare_a_type_is() {
    let db = Db::new().await;
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, status, delivered_at)
         SELECT gen_random_uuid(), CASE WHEN n = 250 THEN 't' ELSE 'other' END, '', 'DELIVERED', now() + n * interval '1 s'
         FROM generate_series(1, 299) n",
    )
    .await;
    let (mut cursor, mut found) = (None, Vec::new());
    loop {
        let since = RawTimestamp::NEG_INFINITY;
        let page = db.storage().list_delivered(&only_t(), since, cursor, 100).await.expect("no failure");
        found.push(page.events.len());
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, [0, 0, 1]);
}
