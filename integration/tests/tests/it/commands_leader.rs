//! `notification leader` run from a shell: showing the leader, and the handover.

use std::time::{Duration, Instant};

use harness::{Finished, Service, ServiceBuilder, wait_for};
use serde_json::{Value, json};

use crate::world::*;

async fn replica(world: &World, name: &str) -> Service {
    let service = world.service().env("NOTIFICATION_REPLICA_ID", name).start().await;
    let sql = format!("SELECT count(*) FROM replicas WHERE replica = '{name}'");
    wait_for("it has reported itself", BOUND, async || (world.number(&sql).await == 1).then_some(())).await;
    service
}

/// A replica `a` that leads and has logged it.
async fn leader(world: &World) -> Service {
    let service = replica(world, "a").await;
    let sql = "SELECT count(*) FROM replicas WHERE replica = 'a' AND 'intake' = ANY (leader_of)";
    wait_for("it leads", BOUND, async || (world.number(sql).await == 1).then_some(())).await;
    service
}

async fn run(world: &World, arguments: &[&str]) -> Finished {
    let dsn = world.database.dsn();
    let builder = ServiceBuilder::default().env("NOTIFICATION_POSTGRES_PRIMARY_DSN", dsn).env("USER", "ada");
    builder.arguments(["leader"].into_iter().chain(arguments.iter().copied())).run().await
}

fn document(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{finished:?}: {error}"))
}

#[tokio::test]
async fn the_leader_is_shown_with_its_term_and_no_leader_is_exit_code_1() {
    let world = World::new().await;
    let none = run(&world, &[]).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(1), "no replica leads\n"), "{none:?}");
    let none = run(&world, &["--json"]).await;
    assert_eq!((none.code, document(&none)), (Some(1), json!({"leader": null, "replicas": []})));
    assert_eq!(run(&world, &["--step-down"]).await.code, Some(1));
    let _a = leader(&world).await;
    let shown = run(&world, &["--json"]).await;
    let shown = document(&shown);
    assert_eq!((&shown["leader"]["replica"], &shown["leader"]["fence"]), (&json!("a"), &json!(1)));
    // A pass of retention may be running.
    let mut leads = shown["replicas"][0]["leader_of"].as_array().expect("a list").clone();
    leads.retain(|worker| worker != "retention");
    assert_eq!(leads, [json!("intake")]);
    let text = run(&world, &[]).await;
    assert!(text.code == Some(0) && text.stdout.starts_with("a leads since 20"), "{text:?}");
    assert_eq!(world.number("SELECT count(*) FROM operator_actions").await, 0);
}

#[tokio::test]
async fn a_leader_that_is_asked_hands_over_beside_traffic_and_no_intent_is_lost_or_twice() {
    let world = World::new().await;
    let a = leader(&world).await;
    let b = replica(&world, "b").await;
    let begun = Instant::now();
    let stepping = run(&world, &["--step-down", "--json"]);
    tokio::pin!(stepping);
    let (mut ticks, mut sent) = (tokio::time::interval(Duration::from_millis(100)), 0);
    let done = loop {
        tokio::select! {
            done = &mut stepping => break done,
            _ = ticks.tick() => {
                world.send(sent..sent + 10).await;
                sent += 10;
            }
        }
    };
    println!("it took {:?}", begun.elapsed());
    assert_eq!(done.code, Some(0), "{done:?}");
    let outcome = document(&done);
    let expected = json!({"asked": "a", "handed_over": true, "leader": "b", "fence": 2});
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&outcome[name], value, "{outcome}");
    }
    assert!(leads(&b).await && !leads(&a).await);
    let action = "SELECT concat_ws('|', action, arguments, affected, request_id, split_part(actor, '@', 1)) FROM operator_actions";
    let request_id = outcome["request_id"].as_str().expect("a text");
    assert_eq!(world.column(action).await, [format!(r#"step_down|{{"replica": "a"}}|1|{request_id}|ada"#)]);
    assert!(a.logged("stepping down at the request of an operator").is_some());
    world.settled(sent.into()).await;
    world.check(0..sent).await;
}

#[tokio::test]
async fn a_replica_that_runs_alone_is_not_asked_and_continues_to_lead() {
    let world = World::new().await;
    let a = leader(&world).await;
    let done = run(&world, &["--step-down"]).await;
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.stderr
            .contains("no other replica has been seen for 30 s, so a continues to lead and was not asked"),
        "{done:?}"
    );
    assert_eq!(world.number("SELECT count(*) FROM replicas WHERE step_down_at IS NOT NULL").await, 0);
    assert_eq!(world.number("SELECT count(*) FROM operator_actions").await, 0);
    world.send(0..10).await;
    world.settled(10).await;
    world.check(0..10).await;
    let shown = document(&run(&world, &["--json"]).await);
    assert_eq!((leads(&a).await, &shown["leader"]["fence"]), (true, &json!(1)));
}

#[tokio::test]
async fn a_leader_that_hangs_does_not_answer_and_the_command_says_so() {
    let world = World::new().await;
    let a = leader(&world).await;
    let b = replica(&world, "b").await;
    a.signal("STOP");
    let done = run(&world, &["--step-down"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.starts_with("a did not answer: it hangs or has crashed"), "{done:?}");
    assert!(done.stdout.contains("\nb leads under fence 2"), "{done:?}");
    a.signal("CONT");
    world.send(0..10).await;
    world.settled(10).await;
    wait_for("it has noticed", BOUND, async || (!leads(&a).await).then_some(())).await;
    assert!(leads(&b).await);
    world.check(0..10).await;
}
