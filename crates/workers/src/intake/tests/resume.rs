//! The position at which a term resumes, given the checkpoints, the stream and the fences.

use ambient::Clock;

use super::*;

// INV-07
#[tokio::test(start_paused = true)]
async fn postgresql_has_the_last_word_on_where_to_resume() {
    let world = world();
    stream(&world, 1..=5);
    world.set_durable(id(3));
    world.set_cached(id(5));
    run_until(&world, 9, |world, _| world.durable() == Some(id(5))).await;
    assert_eq!(numbers(&world), [4, 5]);
    assert_eq!(world.cached(), Some(id(5)));
}

#[tokio::test(start_paused = true)]
async fn the_cached_checkpoint_counts_where_postgresql_has_none() {
    let world = world();
    stream(&world, 1..=5);
    world.set_cached(id(4));
    run_until(&world, 9, |world, _| world.durable() == Some(id(5))).await;
    assert_eq!(numbers(&world), [5]);
}

// INV-07
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_recreated_while_the_intake_runs_is_read_from_its_beginning() {
    let world = world();
    stream(&world, 100..=101);
    run_until(&world, 9, |world, _| {
        let processed = outcomes(world).len();
        if processed == 2 && world.intents.ids() == [id(100), id(101)] {
            // The old checkpoint stays until the first batch of the new stream moves it.
            world.intents.delete();
            world.intents.put(intent(1, "new-1", "u-1"));
            world.intents.put(intent(2, "new-2", "u-1"));
        }
        processed == 4 && world.cached() == Some(id(2))
    })
    .await;
    assert_eq!(numbers(&world), [100, 101, 1, 2]);
    assert_eq!((world.durable(), world.cached()), (Some(id(2)), Some(id(2))), "both went back");
}

#[tokio::test(start_paused = true)]
async fn a_recreated_stream_without_entries_leaves_the_checkpoint_where_it_is() {
    let world = world();
    world.set_durable(id(100));
    world.intents.put(intent(5, "key-5", "u-1"));
    world.intents.delete_entry(id(5));
    run_until(&world, 9, |world, _| world.script.count("read") > 3).await;
    assert_eq!((world.durable(), world.cached()), (Some(id(100)), Some(id(100))));
    stream(&world, [6]);
    run_until(&world, 9, |world, _| world.cached() == Some(id(6))).await;
    assert_eq!(numbers(&world), [6]);
}

// INV-07
#[tokio::test(start_paused = true)]
async fn a_stream_that_lost_its_newest_entries_is_resumed_after_the_last_one_that_is_known() {
    let world = world();
    stream(&world, 1..=9);
    run_until(&world, 9, |world, _| world.cached() == Some(id(9))).await;
    // Entries 5 to 9 are gone, and another 5 was appended since.
    world.intents.lose_tail(5);
    world.intents.put(intent(5, "new-5", "u-1"));
    run_until(&world, 9, |world, _| world.durable() == Some(id(5))).await;
    assert_eq!(numbers(&world)[9..], [5]);
    stream(&world, [20]);
    run_until(&world, 9, |world, _| world.cached() == Some(id(20))).await;
    assert_eq!(numbers(&world)[9..], [5, 20]);
}

// INV-07
#[tokio::test(start_paused = true)]
async fn entries_below_the_checkpoint_of_a_stream_that_lost_its_tail_are_read_once_newer_ones_are_in_it() {
    let world = world();
    stream(&world, 10..=30);
    run_until(&world, 9, |world, _| world.cached() == Some(id(30))).await;
    // The clock of the new primary lags: before intake inspects the stream, the primary generates ten ids
    // below the checkpoint and three above it.
    world.intents.lose_tail(15);
    for number in (16..=25).chain(31..=33) {
        world.intents.put(intent(number, &format!("new-{number}"), "u-1"));
    }
    run_until(&world, 10, |world, _| world.durable() == Some(id(33))).await;
    assert_eq!(numbers(&world)[21..], [16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 31, 32, 33]);
}

// INV-07
#[tokio::test(start_paused = true)]
async fn another_entry_under_the_id_of_the_checkpoint_is_no_witness() {
    let world = world();
    stream(&world, 10..=30);
    let is_saved = |world: &World| world.script.count("save_intents_server") == 1;
    run_until(&world, 9, |world, _| world.cached() == Some(id(30)) && is_saved(world)).await;
    world.intents.lose_tail(15);
    for number in [20, 30, 31] {
        world.intents.put(intent(number, &format!("new-{number}"), "u-1"));
    }
    run_until(&world, 10, |world, _| world.durable() == Some(id(31))).await;
    assert_eq!(numbers(&world)[21..], [20, 30, 31]);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_of_redis_a_repetition_at_the_checkpoint_shows_no_loss() {
    let world = world();
    stream(&world, 10..=12);
    world.intents.put(intent(13, "key-10", "u-1"));
    let is_saved = |world: &World| world.script.count("save_intents_server") == 1;
    run_until(&world, 9, |world, _| world.cached() == Some(id(13)) && is_saved(world)).await;
    world.intents.restart();
    stream(&world, [14]);
    run_until(&world, 9, |world, _| world.durable() == Some(id(14))).await;
    assert_eq!(outcomes(&world).len(), 5, "nothing is read again: {:?}", outcomes(&world));
}

// INV-07
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_cut_short_after_a_large_entry_is_resumed_after_it() {
    let world = world();
    stream(&world, 10..=12);
    world.intents.put(large(13, 5 * 1024 * 1024));
    stream(&world, 14..=16);
    run_until(&world, 9, |world, _| world.cached() == Some(id(16))).await;
    world.intents.lose_tail(3);
    world.intents.put(intent(15, "new-15", "u-1"));
    run_until(&world, 9, |world, _| world.durable() == Some(id(15))).await;
    assert_eq!(outcomes(&world).len(), 8, "nothing is read again: {:?}", outcomes(&world));
}

// INV-07
#[tokio::test(start_paused = true)]
async fn of_more_new_entries_than_are_looked_through_none_is_passed() {
    let world = world();
    stream(&world, [1, 2, 20_000]);
    run_until(&world, 9, |world, _| world.cached() == Some(id(20_000))).await;
    world.intents.lose_tail(1);
    for number in (3..=10_200).chain([20_000, 20_001]) {
        world.intents.put(intent(number, &format!("new-{number}"), "u-1"));
    }
    run_until(&world, 512, |world, _| world.durable() == Some(id(20_001))).await;
    assert_eq!(numbers(&world).len(), 3 + 10_198 + 2);
}

// INV-07
#[tokio::test(start_paused = true)]
async fn deletions_by_consumers_do_not_hide_that_a_stream_lost_its_tail() {
    for deletes_processed in [true, false] {
        let world = world();
        stream(&world, 10..=30);
        let is_saved = |world: &World| world.script.count("save_intents_server") == 1;
        run_until(&world, 9, |world, _| world.cached() == Some(id(30)) && is_saved(world)).await;
        world.intents.lose_tail(15);
        let (new, deleted) = match deletes_processed {
            true => (vec![20, 30, 31], 10..=15),
            false => (vec![20, 31, 32], 32..=32),
        };
        for number in new {
            world.intents.put(intent(number, &format!("new-{number}"), "u-1"));
        }
        deleted.for_each(|number| world.intents.delete_entry(id(number)));
        run_until(&world, 10, |world, _| world.durable() == Some(id(31))).await;
        let accepted = if deletes_processed { vec![20, 30, 31] } else { vec![20, 31] };
        assert_eq!(numbers(&world)[21..], accepted);
    }
}

// INV-13
#[tokio::test(start_paused = true)]
async fn entries_older_than_the_oldest_record_are_not_read_again_after_a_loss() {
    let world = world();
    let now = u64::try_from(world.clock.now().as_millis()).expect("after 1970");
    stream(&world, (1..=5).map(|number| now - 60_000 + number).chain([now - 1]));
    run_until(&world, 9, |world, _| world.cached() == Some(id(now - 1))).await;
    world.intents.lose_tail(1);
    stream(&world, [now]);
    let mut intake = intake(&world, 9);
    intake.settings.record_retention = Duration::from_secs(30);
    run_intake_until(intake, &world, |world, _| world.durable() == Some(id(now))).await;
    assert_eq!(outcomes(&world).len(), 7, "nothing is read again: {:?}", outcomes(&world));
}

// INV-07
#[tokio::test(start_paused = true)]
async fn more_new_entries_than_one_page_below_the_checkpoint_are_all_read() {
    let world = world();
    stream(&world, (10..=20).chain([1_000]));
    run_until(&world, 9, |world, _| world.cached() == Some(id(1_000))).await;
    world.intents.lose_tail(1);
    stream(&world, (21..=300).chain([1_001]));
    run_until(&world, 10, |world, _| world.durable() == Some(id(1_001))).await;
    assert_eq!(numbers(&world).len(), 12 + 280 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_last_processed_entry_that_was_deleted_shows_no_loss() {
    let world = world();
    stream(&world, 10..=12);
    run_until(&world, 9, |world, _| world.cached() == Some(id(12))).await;
    stream(&world, [13]);
    world.intents.delete_entry(id(12));
    run_until(&world, 10, |world, _| world.durable() == Some(id(13))).await;
    assert_eq!(world.script.count("find_last_processed"), 0);
    assert_eq!(numbers(&world), [10, 11, 12, 13]);
}

#[tokio::test(start_paused = true)]
async fn the_server_of_the_stream_is_saved_beside_the_checkpoint_when_it_is_another() {
    let world = world();
    stream(&world, 10..=12);
    // The first checkpoint of a stream is written after its server is known.
    run_until(&world, 9, |world, _| world.script.count("save_intents_server") == 1).await;
    run_until(&world, 9, |world, _| world.cached() == Some(id(12))).await;
    world.intents.restart();
    run_until(&world, 9, |world, _| world.script.count("save_intents_server") == 2).await;
    stream(&world, [13]);
    run_until(&world, 9, |world, _| world.cached() == Some(id(13))).await;
    assert_eq!(world.script.count("save_intents_server"), 2, "nothing changed");
    assert_eq!(numbers(&world), [10, 11, 12, 13]);
}

// INV-07
#[tokio::test(start_paused = true)]
async fn an_absent_stream_leaves_the_checkpoint_alone_and_is_waited_for() {
    let world = world();
    stream(&world, 1..=3);
    world.set_durable(id(2));
    world.intents.set_hidden(true);
    let absent = |health: &Health| waits_for(health, "the intents stream is absent");
    // At the start of a term, and again while it reads.
    run_until(&world, 9, |world, health| {
        let waits = absent(health);
        world.intents.set_hidden(!waits);
        waits
    })
    .await;
    assert_eq!((world.durable(), world.script.count("accept")), (Some(id(2)), 0));
    run_until(&world, 9, |world, _| world.durable() == Some(id(3))).await;
    world.intents.set_hidden(true);
    run_until(&world, 9, |_, health| absent(health)).await;
    world.intents.set_hidden(false);
    stream(&world, [4]);
    run_until(&world, 9, |world, health| world.durable() == Some(id(4)) && !absent(health)).await;
    assert_eq!(numbers(&world), [3, 4]);
}

#[tokio::test(start_paused = true)]
async fn an_absent_stream_is_normal_where_nothing_was_ever_read() {
    let world = world();
    run_until(&world, 9, |world, health| {
        assert!(health.status().blocked.is_none(), "{:?}", health.status());
        world.script.count("read") > 5
    })
    .await;
    stream(&world, [1]);
    run_until(&world, 9, |world, _| world.durable() == Some(id(1))).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_was_overtaken_resumes_after_the_one_that_overtook_it() {
    let world = world();
    stream(&world, 1..=4);
    let overtaken = intake(&world, 9);
    let mut work = begin(&overtaken).await;
    world.set_durable(id(4));
    let pass = work.step(&CancellationToken::new()).await.expect("the stores are there");
    assert!(matches!(pass, Pass::Undecided));
    assert_eq!(outcomes(&world), [""; 0]);
}

// CRASH-13
#[tokio::test(start_paused = true)]
async fn a_term_whose_fence_is_known_already_steps_down_and_the_next_is_above_it() {
    // PostgreSQL was restored to a state that is one term old, or several; Redis or PostgreSQL still has the
    // fence.
    for fence in [1, 5, checkpoint_fence_limit()] {
        for in_redis in [true, false] {
            let world = world();
            stream(&world, [1]);
            let seen = Checkpoint { fence, last_entry_id: EntryId::ZERO };
            match in_redis {
                true => world.cache.set(STREAM, seen),
                false => world.database.set_checkpoint(STREAM, Some(seen)),
            }
            run_until(&world, 9, |world, _| world.cached() == Some(id(1))).await;
            let written = world.cache.get(STREAM).map(|cached| cached.fence);
            assert_eq!(written, Some(fence + 1), "{fence} in Redis: {in_redis}");
            assert_eq!(world.script.count("campaign"), 2);
        }
    }
}

/// The highest fence that the first term accepts as another term's.
fn checkpoint_fence_limit() -> Fence {
    1 + domain::checkpoint::MAX_FENCE_LEAD
}

// INV-08
#[tokio::test(start_paused = true)]
async fn a_garbled_fence_in_redis_costs_no_term() {
    let world = world();
    stream(&world, [1]);
    let garbled = Checkpoint { fence: checkpoint_fence_limit() + 1, last_entry_id: id(7) };
    world.cache.set(STREAM, garbled);
    run_until(&world, 9, |world, _| world.cached() == Some(id(1))).await;
    assert_eq!(world.script.count("raise_fence"), 0);
    assert_eq!(world.cache.get(STREAM).map(|cached| cached.fence), Some(1));
}

#[tokio::test(start_paused = true)]
async fn within_a_term_its_own_fence_is_its_own() {
    let world = world();
    stream(&world, 1..=3);
    // Each failure makes the leader determine again where to resume, and it finds its own fence there.
    for call in ["accept", "read", "inspect"] {
        world.script.fail(call, down(call));
    }
    run_until(&world, 1, |world, _| world.cached() == Some(id(3))).await;
    assert_eq!((world.script.count("raise_fence"), world.script.count("campaign")), (0, 1));
    assert!(world.script.count("write_fence") > 1);
}

// INV-12
#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_moves_again_and_again_is_reported_and_waited_for() {
    let world = world();
    stream(&world, 1..=3);
    // Before each transaction the checkpoint is removed, or set if there is none.
    let database = world.database.clone();
    world.script.on("accept", move |_| {
        let is_set = database.checkpoint(STREAM).is_some();
        let start = Checkpoint { fence: 0, last_entry_id: EntryId::ZERO };
        database.set_checkpoint(STREAM, (!is_set).then_some(start));
        Effect::Pass
    });
    run_until(&world, 9, |world, health| {
        if waits_for(health, MOVED_AGAIN) {
            world.script.off("accept");
        }
        world.durable() == Some(id(3)) && health.status().blocked.is_none()
    })
    .await;
    let tried = world.script.count("accept");
    assert!((3..10).contains(&tried), "{tried} tries");
}

// INV-07, CRASH-14
#[tokio::test(start_paused = true)]
async fn entries_whose_outcomes_postgresql_has_lost_are_read_again() {
    let world = world();
    stream(&world, 1..=2);
    let restored = intake(&world, 9);
    let mut work = begin(&restored).await;
    let stop = CancellationToken::new();
    assert!(matches!(work.step(&stop).await, Ok(Pass::Continue)));
    let backup = world.database.backup();
    stream(&world, 3..=4);
    assert!(matches!(work.step(&stop).await, Ok(Pass::Continue)));
    assert_eq!(records(&world), ["1-0", "2-0", "3-0", "4-0"]);
    world.database.restore(&backup);
    stream(&world, [5]);
    run_until(&world, 9, |world, _| world.durable() == Some(id(5))).await;
    assert_eq!(records(&world), ["1-0", "2-0", "3-0", "4-0", "5-0"]);
    assert_eq!(numbers(&world), [1, 2, 3, 4, 3, 4, 5]);
    stream(&world, [6]);
    assert!(matches!(work.step(&stop).await, Ok(Pass::Undecided)), "the old position is worth nothing");
}
