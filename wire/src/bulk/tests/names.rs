//! Senders by name: their addresses change.

use std::io;
use std::net::SocketAddr;

use super::*;
use crate::address::Resolver;

const NAME: &str = "scatter-0.scatter.ns.svc:7401";

#[tokio::test]
async fn a_sender_that_comes_back_at_another_address_is_found_by_its_name() {
    let bytes = pattern(4000);
    let parts = parts_of(&bytes, 2, 500);
    let now: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
    let resolver = {
        let now = Arc::clone(&now);
        Resolver::new(move |name| {
            assert_eq!(name.to_string(), NAME);
            let found = now.lock().unwrap().map(|address| vec![address]);
            Box::pin(std::future::ready(found.ok_or_else(|| io::ErrorKind::NotFound.into())))
        })
    };
    let pull = HttpPull::resolving(Security::Plain, PullLimits::default(), resolver);
    let by_name = |from: PullFrom| PullFrom { endpoint: NAME.to_owned(), ..from };

    let source = Source::new(bytes.clone());
    let unknown = by_name(Served::plain(&source).await.from());
    let failed = failures(&fetch(&pull, unknown, &parts, STALL).await);
    assert_eq!(failed.len(), parts.len());
    assert!(failed.iter().all(|error| matches!(error, PartError::Unreachable { .. })), "{failed:?}");

    for _ in 0..2 {
        let served = Served::plain(&source).await;
        *now.lock().unwrap() = Some(served.endpoint.parse().unwrap());
        let outcomes = fetch(&pull, by_name(served.from()), &parts, STALL).await;
        assert_eq!(failures(&outcomes), []);
        assert_whole(&outcomes, &parts, &bytes);
    }
}
