//! Work whose time grows with a large text. It runs on threads of its own, so that other requests do not wait
//! for it.

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// The largest text that is processed on the caller's thread, in bytes.
const MAX_LIGHT_BYTES: usize = 256 * 1024;
/// The number of larger texts that are processed at a time in the whole process.
const MAX_HEAVY: usize = 2;

static HEAVY: Semaphore = Semaphore::const_new(MAX_HEAVY);

/// Runs `work` on a text of `bytes` bytes. The work continues if its caller stops waiting.
pub(crate) async fn work_on<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= MAX_LIGHT_BYTES {
        return work();
    }
    let permit = HEAVY.acquire().await;
    let done = spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    match done.await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
