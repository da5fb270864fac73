//! A stream that lost its newest entries and receives no new ones: the checkpoint moves back to its last
//! known entry.

use super::*;

/// Entries 10 to 30. Those after 15 are lost while no intake runs. The checkpoint is 30.
async fn cut() -> World {
    let world = world();
    stream(&world, 10..=30);
    let is_saved = |world: &World| world.script.count("save_intents_server") == 1;
    run_until(&world, 9, |world, _| world.cached() == Some(id(30)) && is_saved(world)).await;
    world.intents.lose_tail(15);
    world
}

// INV-07
#[tokio::test(start_paused = true)]
async fn without_a_new_entry_both_checkpoints_go_back_to_the_last_known_one() {
    let world = cut().await;
    let reads = world.script.count("read");
    run_until(&world, 9, |world, _| world.script.count("read") > reads + 3).await;
    assert_eq!((world.durable(), world.cached()), (Some(id(15)), Some(id(15))));
    assert_eq!(numbers(&world).len(), 21, "nothing is read again");
    // The next term finds its last processed entry, so the loss is detected only once.
    let looks = world.script.count("find_last_processed");
    let reads = world.script.count("read");
    run_until(&world, 9, |world, _| world.script.count("read") > reads + 3).await;
    assert_eq!(world.script.count("find_last_processed"), looks);
    world.intents.put(intent(16, "new-16", "u-1"));
    stream(&world, [40]);
    run_until(&world, 9, |world, _| world.cached() == Some(id(40))).await;
    assert_eq!(numbers(&world)[21..], [16, 40]);
}

// INV-07
#[tokio::test(start_paused = true)]
async fn whatever_fails_when_the_checkpoint_goes_back_nothing_is_skipped_or_accepted_twice() {
    for call in ["find_last_processed", "reset", "move_checkpoint_back", "read"] {
        let world = cut().await;
        world.script.fail(call, down(call));
        run_until(&world, 9, |world, _| world.durable() == Some(id(15)) && world.cached() == Some(id(15)))
            .await;
        stream(&world, 16..=31);
        run_until(&world, 9, |world, _| world.cached() == Some(id(31))).await;
        assert_eq!(records(&world).len(), 22, "{call}: the keys of 16 to 30 have their records");
        assert_eq!(outcomes(&world).len(), 21 + 16, "{call}");
    }
}

// INV-01
#[tokio::test(start_paused = true)]
async fn entries_that_come_back_after_the_checkpoint_went_back_are_duplicates() {
    let world = cut().await;
    run_until(&world, 9, |world, _| world.durable() == Some(id(15))).await;
    stream(&world, 16..=30);
    run_until(&world, 9, |world, _| world.cached() == Some(id(30))).await;
    assert_eq!(records(&world).len(), 21);
    assert!(
        names(&world)[21..].iter().all(|name| name.is_empty() || name == "duplicate"),
        "{:?}",
        names(&world)
    );
}

// INV-08
#[tokio::test(start_paused = true)]
async fn a_replica_that_was_overtaken_does_not_move_the_checkpoint_back() {
    let world = cut().await;
    let overtaken = intake(&world, 9);
    let database = world.database.clone();
    world.script.on("move_checkpoint_back", move |_| {
        database.set_checkpoint(STREAM, Some(Checkpoint { fence: 8, last_entry_id: id(31) }));
        Effect::Pass
    });
    let mut work = Work::new(&overtaken, 7);
    assert!(matches!(work.keeper.resume(&work.reader).await, Ok(Resumed::Moved)));
    assert_eq!(world.durable(), Some(id(31)));
}
