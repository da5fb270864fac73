//! Tests with real signals, in a process of their own.

use std::process::Command;
use std::time::Duration;

#[tokio::test]
async fn a_signal_of_the_system_cancels_the_token() {
    let stop = app::shutdown::listen().expect("signals can be listened for");
    assert!(!stop.is_cancelled());
    let id = std::process::id().to_string();
    let status = Command::new("kill").args(["-TERM", &id]).status().expect("kill runs");
    assert!(status.success());
    tokio::time::timeout(Duration::from_secs(30), stop.cancelled()).await.expect("the signal is obeyed");
}
