use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hypic_domain::tuple::PartKind;
use hypic_domain::unit;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::tls::Security;
use crate::tls::tests::Authority;

mod broken;
mod names;

const KEY: SegmentKey = SegmentKey([3; 32]);
const STALL: Duration = Duration::from_secs(2);

/// Bytes that no two offsets share.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// A tuple of `layers` layers with three parts of about `len` bytes each.
fn parts_of(bytes: &[u8], layers: u16, len: u64) -> Vec<PartSpec> {
    let mut parts = Vec::new();
    let mut offset = 0;
    for layer in 0..layers {
        for kind in [PartKind::Transition, PartKind::State, PartKind::Tail] {
            let len = len - u64::from(layer);
            let range = offset as usize..(offset + len) as usize;
            parts.push(PartSpec { layer, kind, offset, len, sum: xxh3_64(&bytes[range]) });
            offset += len;
        }
    }
    parts
}

/// Serves one tuple; counts who still holds its bytes; answers `reply` where that is set.
struct Source {
    bytes: Vec<u8>,
    held: Arc<AtomicUsize>,
    asked: Mutex<Vec<u64>>,
    reply: Mutex<Option<ReadPart>>,
    /// Bytes that are built already.
    built: AtomicUsize,
}

struct Slice {
    bytes: Vec<u8>,
    held: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Source {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        let built = AtomicUsize::new(bytes.len());
        Arc::new(Self {
            bytes,
            held: Arc::default(),
            asked: Mutex::default(),
            reply: Mutex::default(),
            built,
        })
    }
}

impl PartSource for Source {
    fn read(
        &self,
        key: SegmentKey,
        lease: u64,
        offset: u64,
        len: u64,
    ) -> BoxFuture<'static, Result<Bytes, ReadPart>> {
        assert_eq!(lease, 7);
        self.asked.lock().unwrap().push(offset);
        let reply = *self.reply.lock().unwrap();
        let end = offset.saturating_add(len) as usize;
        let outcome = match reply {
            Some(error) => Err(error),
            None if key != KEY => Err(ReadPart::Unknown),
            None if end > self.built.load(Ordering::SeqCst) => Err(ReadPart::Range),
            None => {
                self.held.fetch_add(1, Ordering::SeqCst);
                let bytes = self.bytes[offset as usize..end].to_vec();
                Ok(Bytes::from_owner(Slice { bytes, held: Arc::clone(&self.held) }))
            }
        };
        Box::pin(async move { outcome })
    }
}

struct Served {
    server: Arc<BulkServer>,
    tickets: Arc<Tickets>,
    endpoint: String,
    _stop: oneshot::Sender<()>,
}

impl Served {
    async fn new(source: Arc<Source>, security: Security, limits: ServeLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let tickets = Arc::new(Tickets::random().unwrap());
        let server = Arc::new(BulkServer::new(source, Arc::clone(&tickets), limits));
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(Arc::clone(&server).serve(listener, security, async move { drop(stopped.await) }));
        Self { server, tickets, endpoint, _stop: stop }
    }

    async fn plain(source: &Arc<Source>) -> Self {
        Self::new(Arc::clone(source), Security::Plain, ServeLimits::default()).await
    }

    fn from(&self) -> PullFrom {
        let ticket = self.tickets.mint(&KEY, 7, unix_now() + Duration::from_secs(60));
        PullFrom { endpoint: self.endpoint.clone(), key: KEY, ticket }
    }
}

fn pull() -> HttpPull {
    HttpPull::new(Security::Plain, PullLimits::default())
}

type Outcomes = Vec<(usize, Result<Bytes, PartError>)>;

/// Starts a fetch whose outcomes arrive on a channel.
async fn start(
    pull: &HttpPull,
    from: PullFrom,
    parts: &[PartSpec],
    budget: &Budget,
    stall: Duration,
) -> (Box<dyn Transfer>, mpsc::UnboundedReceiver<(usize, Result<Bytes, PartError>)>) {
    let lease = budget.lease(unit::Bytes(parts.iter().map(|part| part.len).sum())).await;
    let (tell, told) = mpsc::unbounded_channel();
    let on_part: OnPart = Arc::new(move |index, outcome| drop(tell.send((index, outcome))));
    (pull.fetch(from, parts.to_vec(), lease, stall, on_part), told)
}

/// Pulls all parts; checks that each is reported once and that the lease comes back.
async fn fetch(pull: &HttpPull, from: PullFrom, parts: &[PartSpec], stall: Duration) -> Outcomes {
    let budget = Budget::new(unit::Bytes(1 << 30));
    let (transfer, mut told) = start(pull, from, parts, &budget, stall).await;
    let (lease, _) = transfer.quiesce().await;
    assert!(lease.is_some() && budget.used().0 > 0);
    drop(lease);
    assert_eq!(budget.used(), unit::Bytes(0));
    let mut outcomes = Vec::new();
    while let Ok(outcome) = told.try_recv() {
        outcomes.push(outcome);
    }
    let mut places: Vec<_> = outcomes.iter().map(|(index, _)| *index).collect();
    places.sort_unstable();
    assert!(places.iter().copied().eq(0..parts.len()), "each part once: {places:?}");
    outcomes
}

fn failures(outcomes: &Outcomes) -> Vec<PartError> {
    outcomes.iter().filter_map(|(_, outcome)| outcome.clone().err()).collect()
}

fn assert_whole(outcomes: &Outcomes, parts: &[PartSpec], bytes: &[u8]) {
    for (index, outcome) in outcomes {
        let part = &parts[*index];
        assert_eq!(
            outcome.as_ref().unwrap(),
            &bytes[part.offset as usize..(part.offset + part.len) as usize]
        );
    }
}

async fn eventually(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn parts_arrive_whole_and_counted_plain_and_over_tls() {
    let authority = Authority::new();
    for tls in [false, true] {
        let side = |name| if tls { authority.security(name) } else { Security::Plain };
        let bytes = pattern(4 << 20);
        // Larger and smaller than every buffer on the way.
        for (layers, len) in [(4, 300_000), (8, 1000), (3, 40)] {
            let parts = parts_of(&bytes, layers, len);
            let source = Source::new(bytes.clone());
            let served = Served::new(Arc::clone(&source), side("hypic-agent"), ServeLimits::default()).await;
            let pull = HttpPull::new(side("hypic-agent"), PullLimits::default());
            let outcomes = fetch(&pull, served.from(), &parts, STALL).await;
            assert_whole(&outcomes, &parts, &bytes);
            let (total, count) = (parts.iter().map(|part| part.len).sum(), parts.len() as u64);
            let expected = BulkCounts { bytes: total, parts: count, ..BulkCounts::default() };
            assert_eq!(pull.counters().read(), expected);
            assert_eq!(served.server.counters().read(), expected);
            eventually(|| source.held.load(Ordering::SeqCst) == 0).await;
        }
    }
}

#[tokio::test]
async fn low_layers_go_first_over_all_fetches_from_a_sender() {
    let bytes = pattern(1 << 20);
    let parts = parts_of(&bytes, 16, 1000);
    let source = Source::new(bytes);
    let served = Served::plain(&source).await;
    let pull = HttpPull::new(Security::Plain, PullLimits { connections: 1, ..PullLimits::default() });
    let budget = Budget::new(unit::Bytes(1 << 30));
    let (first, _told) = start(&pull, served.from(), &parts, &budget, STALL).await;
    let (second, _told2) = start(&pull, served.from(), &parts, &budget, STALL).await;
    first.quiesce().await.1.unwrap();
    second.quiesce().await.1.unwrap();
    let layer_of = |offset: &u64| parts.iter().find(|part| part.offset == *offset).unwrap().layer;
    let layers: Vec<_> = source.asked.lock().unwrap().iter().map(layer_of).collect();
    assert!(layers.is_sorted(), "{layers:?}");
    assert_eq!(layers.len(), 2 * parts.len());
}

#[tokio::test]
async fn a_corrupt_byte_fails_its_part_alone() {
    let bytes = pattern(1 << 20);
    let parts = parts_of(&bytes, 4, 50_000);
    let mut corrupt = bytes.clone();
    corrupt[parts[5].offset as usize + 17] ^= 1;
    let served = Served::plain(&Source::new(corrupt)).await;
    let pull = pull();
    let outcomes = fetch(&pull, served.from(), &parts, STALL).await;
    for (index, outcome) in outcomes {
        assert_eq!(outcome.err(), (index == 5).then_some(PartError::Checksum));
    }
    assert_eq!(pull.counters().read().checksum_failures, 1);
    assert_eq!(pull.counters().read().parts, parts.len() as u64 - 1);
}

#[tokio::test]
async fn what_the_sender_refuses_is_told_apart() {
    let bytes = pattern(10_000);
    let parts = parts_of(&bytes, 1, 1000);
    let source = Source::new(bytes.clone());
    let served = Served::plain(&source).await;
    let pull = pull();
    let retry = Duration::from_secs(3);
    for (reply, expected) in [
        (ReadPart::Unknown, PartError::Gone),
        (ReadPart::Gone, PartError::Gone),
        (ReadPart::Busy { retry }, PartError::Busy { retry }),
    ] {
        *source.reply.lock().unwrap() = Some(reply);
        assert_eq!(failures(&fetch(&pull, served.from(), &parts, STALL).await), vec![expected; 3]);
    }
    *source.reply.lock().unwrap() = None;

    let over_long = [PartSpec { len: 20_000, ..parts[0].clone() }];
    assert!(matches!(
        failures(&fetch(&pull, served.from(), &over_long, STALL).await)[..],
        [PartError::Refused { ref why }] if why.contains("416")
    ));
    let mut forged = served.from();
    forged.ticket = Bytes::from_static(&[0; 48]);
    assert!(matches!(
        failures(&fetch(&pull, forged, &parts[..1], STALL).await)[..],
        [PartError::Refused { .. }]
    ));
    let mut late = served.from();
    late.ticket = served.tickets.mint(&KEY, 7, unix_now().saturating_sub(Duration::from_secs(1)));
    assert_eq!(failures(&fetch(&pull, late, &parts[..1], STALL).await), [PartError::Gone]);
    // The connections have survived all of it.
    assert_whole(&fetch(&pull, served.from(), &parts, STALL).await, &parts, &bytes);
}

#[tokio::test]
async fn a_tuple_being_built_serves_the_parts_that_are_done() {
    let bytes = pattern(10_000);
    let parts = parts_of(&bytes, 2, 1000);
    let source = Source::new(bytes.clone());
    let served = Served::plain(&source).await;
    source.built.store(3000, Ordering::SeqCst);
    let pull = pull();
    assert_whole(&fetch(&pull, served.from(), &parts[..3], STALL).await, &parts, &bytes);
    assert_eq!(failures(&fetch(&pull, served.from(), &parts[3..], STALL).await).len(), 3);
    source.built.store(10_000, Ordering::SeqCst);
    assert_whole(&fetch(&pull, served.from(), &parts[3..], STALL).await, &parts[3..], &bytes);
}

#[tokio::test]
async fn parts_of_impossible_size_and_senders_of_impossible_names_are_refused_at_once() {
    let served = Served::plain(&Source::new(pattern(10))).await;
    let pull = pull();
    let part = |offset, len| [PartSpec { layer: 0, kind: PartKind::State, offset, len, sum: 0 }];
    let budget = Budget::new(unit::Bytes(1 << 20));
    for part in [part(0, 0), part(0, PART_LIMIT + 1), part(u64::MAX, 2)] {
        let (transfer, _told) = start(&pull, served.from(), &part, &budget, STALL).await;
        assert!(matches!(transfer.quiesce().await.1, Err(PartError::Refused { .. })));
    }
    let nowhere = PullFrom { endpoint: "fd00::7:1".to_owned(), ..served.from() };
    let (transfer, _told) = start(&pull, nowhere, &part(0, 1), &budget, STALL).await;
    assert!(matches!(transfer.quiesce().await.1, Err(PartError::Unreachable { .. })));
    assert_eq!(budget.used(), unit::Bytes(0));
}

#[tokio::test]
async fn a_sender_that_is_away_fails_all_that_waits_and_is_found_again() {
    let bytes = pattern(1 << 20);
    let parts = parts_of(&bytes, 4, 1000);
    let source = Source::new(bytes.clone());
    let served = Served::plain(&source).await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let away = PullFrom { endpoint: gone.local_addr().unwrap().to_string(), ..served.from() };
    drop(gone);
    let pull = pull();
    let outcomes = fetch(&pull, away, &parts, STALL).await;
    assert!(failures(&outcomes).iter().all(|error| matches!(error, PartError::Unreachable { .. })));
    assert_eq!(failures(&outcomes).len(), parts.len());
    assert_whole(&fetch(&pull, served.from(), &parts, STALL).await, &parts, &bytes);
}

#[tokio::test]
async fn cancelling_at_any_moment_reports_every_part_and_returns_the_lease() {
    let bytes = pattern(16 << 20);
    let parts = parts_of(&bytes, 4, 1_300_000);
    let source = Source::new(bytes.clone());
    let served = Served::plain(&source).await;
    let pull = pull();
    let budget = Budget::new(unit::Bytes(64 << 20));
    for after in 0..parts.len() {
        let (transfer, mut told) = start(&pull, served.from(), &parts, &budget, STALL).await;
        for _ in 0..after {
            told.recv().await.unwrap().1.unwrap();
        }
        transfer.cancel();
        drop(transfer.quiesce().await.0);
        assert_eq!(budget.used(), unit::Bytes(0));
        let mut rest = 0;
        while told.try_recv().is_ok() {
            rest += 1;
        }
        assert_eq!(after + rest, parts.len());
    }
    // Dropping is cancelling: the lease comes back by itself.
    let (transfer, told) = start(&pull, served.from(), &parts, &budget, STALL).await;
    drop((transfer, told));
    eventually(|| budget.used() == unit::Bytes(0)).await;
    // And the next fetch is served as if nothing had been.
    assert_whole(&fetch(&pull, served.from(), &parts, STALL).await, &parts, &bytes);
    eventually(|| source.held.load(Ordering::SeqCst) == 0).await;
}

async fn send_get(endpoint: &str, from: &PullFrom, range: &str, method: &str) -> TcpStream {
    let mut stream = TcpStream::connect(endpoint).await.unwrap();
    let request = format!(
        "{method} /v1/segments/{} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n{range}\r\n",
        hex::encode(from.key.0),
        hex::encode(&from.ticket)
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_receiver_that_hangs_up_or_stops_reading_frees_the_sender() {
    let source = Source::new(pattern(64 << 20));
    let limits = ServeLimits { progress: Duration::from_millis(100), ..ServeLimits::default() };
    let served = Served::new(Arc::clone(&source), Security::Plain, limits).await;
    let (from, range) = (served.from(), "range: bytes=0-67108863\r\n");
    let hung_up = send_get(&served.endpoint, &from, range, "GET").await;
    eventually(|| source.asked.lock().unwrap().len() == 1).await;
    drop(hung_up);
    eventually(|| source.held.load(Ordering::SeqCst) == 0).await;
    let _stopped = send_get(&served.endpoint, &from, range, "GET").await;
    eventually(|| source.asked.lock().unwrap().len() == 2).await;
    eventually(|| source.held.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn answers_are_bounded_and_the_rest_is_told_to_come_again() {
    let source = Source::new(pattern(64 << 20));
    let limits = ServeLimits { answers: 1, ..ServeLimits::default() };
    let served = Served::new(Arc::clone(&source), Security::Plain, limits).await;
    let slow = send_get(&served.endpoint, &served.from(), "range: bytes=0-67108863\r\n", "GET").await;
    eventually(|| source.held.load(Ordering::SeqCst) == 1).await;
    let parts = parts_of(&source.bytes, 1, 1000);
    let pull = pull();
    let busy = PartError::Busy { retry: Duration::from_secs(1) };
    assert_eq!(failures(&fetch(&pull, served.from(), &parts[..1], STALL).await), [busy]);
    drop(slow);
    eventually(|| source.held.load(Ordering::SeqCst) == 0).await;
    assert_whole(&fetch(&pull, served.from(), &parts[..1], STALL).await, &parts, &source.bytes);
}

#[tokio::test]
async fn questions_other_than_one_range_with_a_ticket_are_refused() {
    let source = Source::new(pattern(1000));
    let served = Served::plain(&source).await;
    let from = served.from();
    for (method, range, status) in [
        ("GET", "range: bytes=0-9\r\n", 206),
        ("POST", "range: bytes=0-9\r\ncontent-length: 0\r\n", 405),
        ("GET", "", 416),
        ("GET", "range: bytes=-9\r\n", 416),
        ("GET", "range: bytes=9-\r\n", 416),
        ("GET", "range: bytes=9-8\r\n", 416),
        ("GET", "range: bytes=0-1,3-4\r\n", 416),
        ("GET", "range: bytes=0-18446744073709551615\r\n", 416),
        ("GET", "range: bytes=995-1000\r\n", 416),
    ] {
        let mut stream = send_get(&served.endpoint, &from, range, method).await;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, format!("HTTP/1.1 {status}").as_bytes(), "{method} {range}");
    }
}
