//! The examples of the console's catalogue: the service accepts the commands that an operator copies.

use std::collections::BTreeSet;
use std::process::Stdio;

use domain::catalog::Catalog;
use harness::Service;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::api::{OPERATOR, TOKENS, TokensFile, with_api};
use crate::console::Browser;
use crate::world::*;

/// The commands of a page, as its buttons copy them.
fn commands(page: &str) -> Vec<String> {
    let attributes = page.split("data-copy=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let text = |text: &str| {
        text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    };
    attributes.map(text).filter(|text| text.starts_with("curl") || text.starts_with("redis-cli")).collect()
}

async fn run(command: &str, service: &Service, world: &World, producer: &str) {
    let output = Command::new("sh")
        .args(["-c", command])
        .env("API_URL", format!("http://{}", service.api_addr()))
        .env("TOKEN", format!("token-of-{producer}"))
        .env("REDIS_URL", format!("redis://{}", world.redis.addr()))
        .env("no_proxy", "127.0.0.1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output =
        tokio::time::timeout(BOUND, output).await.expect("the command ends").expect("there is a shell");
    assert!(output.status.success(), "{command}:\n{output:?}");
}

#[tokio::test]
async fn each_example_of_the_catalogue_is_accepted_as_it_is_copied() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let catalog = Catalog::built_in();
    let producers: BTreeSet<&String> = catalog.types().flat_map(|known| known.producers()).collect();
    let entry = |producer: &&String| {
        let sha256 = hex::encode(Sha256::digest(format!("token-of-{producer}")));
        format!(
            "[[token]]\nname = \"example-{producer}\"\nsha256 = \"{sha256}\"\nproducer = \"{producer}\"\n"
        )
    };
    let entries: String = producers.iter().map(entry).collect();
    std::fs::write(&tokens.0, format!("{TOKENS}\n{entries}")).expect("the file is written");
    let service =
        with_api(unhurried(world.service()), &tokens).env("NOTIFICATION_CONSOLE", "on").start().await;
    let mut browser = Browser::default();
    assert_eq!(browser.sign_in(&service.api_addr(), OPERATOR).await.status, 303);
    let mut sent = 0;
    for known in catalog.types() {
        let page = browser.get(&service.api_addr(), &format!("/console/catalogue/{}", known.name())).await;
        let commands = commands(&page.body);
        assert!(commands.len() >= 2, "{}", page.body);
        for command in commands {
            run(&command, &service, &world, &known.producers()[0]).await;
            sent += 1;
        }
    }
    world.settled(sent).await;
    assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, 0);
}
