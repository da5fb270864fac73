//! The reports of lost entries: each loss is reported once.

use super::*;

/// Observes for as long as it takes until a comparison is settled and repeated.
async fn look_for_a_while(fixture: &Fixture, replicas: &mut [&mut Replica]) {
    for _ in 0..60 {
        for replica in &mut *replicas {
            replica.look().await.expect("the stores are there");
        }
        fixture.pass(OBSERVE_INTERVAL).await;
    }
}

// INV-13
#[tokio::test(start_paused = true)]
async fn one_loss_is_counted_once_whatever_restarts_follow_and_however_many_replicas_run() {
    let (fixture, mut one) = published().await;
    let mut two = Replica::of(&fixture);
    fixture.world.publishing.fail_over(0);
    fixture.world.clock.advance(Duration::from_secs(1));
    fixture.publish(11).await;
    look_for_a_while(&fixture, &mut [&mut one, &mut two]).await;
    let counted = |one: &Replica, two: &Replica| [one, two].map(|replica| replica.watch.losses.counted());
    assert_eq!(counted(&one, &two), [10, 0], "the first replica compares");
    for number in 12..=14 {
        fixture.world.publishing.restart();
        fixture.publish(number).await;
        let compared = fixture.listings().len();
        look_for_a_while(&fixture, &mut [&mut one, &mut two]).await;
        assert!(fixture.listings().len() > compared, "each restart is compared");
        assert_eq!(counted(&one, &two), [0, 0], "nothing of this restart");
        // At the next restart, the replica is a new process, too.
        one = Replica::of(&fixture);
        one.look().await.expect("the stores are there");
    }
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_second_loss_is_counted_and_the_first_one_not_again() {
    let (fixture, mut replica) = published().await;
    for lost in [10, 3] {
        fixture.world.publishing.fail_over(0);
        fixture.world.clock.advance(Duration::from_secs(1));
        fixture.publish(20 + lost).await;
        look_for_a_while(&fixture, &mut [&mut replica]).await;
        assert_eq!(replica.watch.losses.counted(), lost);
        for number in [30 + lost, 40 + lost] {
            fixture.publish(number).await;
        }
        look_for_a_while(&fixture, &mut [&mut replica]).await;
    }
}

// INV-13
#[tokio::test(start_paused = true)]
async fn what_only_the_repetition_finds_lost_is_counted_as_well() {
    let (fixture, mut replica) = published().await;
    let late = fixture.append(11).await;
    fixture.world.publishing.fail_over(0);
    fixture.world.clock.advance(Duration::from_secs(1));
    fixture.publish(12).await;
    replica.notice().await.expect("the stores are there");
    assert_eq!(replica.watch.losses.counted(), 10);
    fixture.complete(late).await;
    look_for_a_while(&fixture, &mut [&mut replica]).await;
    assert_eq!(replica.watch.losses.counted(), 11);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_deleted_stream_is_compared_by_one_replica_and_counted_once() {
    let (fixture, mut one) = published().await;
    let mut two = Replica::of(&fixture);
    two.look().await.expect("the stores are there");
    fixture.world.publishing.delete_stream(Channel::Push);
    fixture.world.clock.advance(Duration::from_secs(1));
    fixture.publish(11).await;
    look_for_a_while(&fixture, &mut [&mut one, &mut two]).await;
    assert_eq!(one.watch.losses.counted() + two.watch.losses.counted(), 10);
    assert_eq!(fixture.listings().len(), 2, "the comparison and its repetition");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_stream_that_stays_absent_is_lost_once() {
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.delete_stream(Channel::Push);
    look_for_a_while(&fixture, &mut [&mut replica]).await;
    assert_eq!(replica.watch.losses.counted(), 10);
    fixture.world.publishing.restart();
    look_for_a_while(&fixture, &mut [&mut replica]).await;
    assert_eq!((replica.watch.losses.counted(), fixture.listings().len()), (0, 4), "of the restart");
}
