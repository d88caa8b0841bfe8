//! An agent that replays ids in place of a model.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::Stream;
use hypic_domain::flow::{DrawnToken, PromptCounts, ReadyState, SegmentOutcome, SegmentReport, TokenEvent};
use hypic_domain::model::ModelSpec;
use hypic_domain::sampling::FinishReason;
use hypic_domain::unit::Tokens;
use hypic_wire::convert::order::Addressed;
use hypic_wire::proto::agent_server::Agent;
use hypic_wire::proto::index_server::Index;
use hypic_wire::proto::{self, DescribeRequest, DescribeResponse, GenerateEvent, GenerateRequest};
use hypic_wire::status::Refusal as PeerRefusal;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// What the stub does with every order.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) ids: Vec<u32>,
    pub(crate) finish: FinishReason,
    pub(crate) before_first: Duration,
    pub(crate) between: Duration,
    /// The agent breaks off after so many tokens of its own.
    pub(crate) dies_after: Option<usize>,
    pub(crate) busy: bool,
    pub(crate) index_away: bool,
    /// Log probability of every token, where asked for.
    pub(crate) logprob: f32,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            finish: FinishReason::Stop,
            before_first: Duration::ZERO,
            between: Duration::ZERO,
            dies_after: None,
            busy: false,
            index_away: false,
            logprob: -0.25,
        }
    }
}

/// The stub. Clones are the same agent.
#[derive(Clone)]
pub(crate) struct Stub {
    pub(crate) name: String,
    pub(crate) script: Arc<Mutex<Script>>,
    /// Orders that came, oldest first.
    pub(crate) orders: Arc<Mutex<Vec<Addressed>>>,
    /// Streams that run.
    pub(crate) running: Arc<AtomicUsize>,
    /// Messages handed to the transport.
    pub(crate) sent: Arc<AtomicUsize>,
}

impl Stub {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            script: Arc::default(),
            orders: Arc::default(),
            running: Arc::default(),
            sent: Arc::default(),
        }
    }

    pub(crate) fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().expect("lock"));
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }
}

/// Counts a stream while it lives.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<GenerateEvent, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for Stub {
    type GenerateStream = Events;
    type BuildStream = ReceiverStream<Result<proto::BuildEvent, Status>>;

    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        let spec = ModelSpec {
            id: "hypic-tiny".into(),
            layers: Vec::new(),
            hidden: 8,
            vocab: 4096,
            context: Tokens(16384),
        };
        Ok(Response::new(DescribeResponse {
            epoch: 1,
            agent: self.name.clone(),
            incarnation: 7,
            role: proto::AgentRole::Combine.into(),
            identity: vec![1; 32],
            model_spec: serde_json::to_string(&spec).expect("JSON"),
            model_file: String::new(),
            ready: true,
            load: None,
            calibration: None,
            live_share: 1.0,
            build_tokens_per_second: 1000.0,
            index_partial: 0,
            model: None,
            index_whole: true,
        }))
    }

    async fn generate(&self, request: Request<GenerateRequest>) -> Result<Response<Events>, Status> {
        let addressed = Addressed::try_from(request.into_inner()).map_err(PeerRefusal::from)?;
        self.orders.lock().expect("lock").push(addressed.clone());
        let script = self.script.lock().expect("lock").clone();
        if script.busy {
            return Err(PeerRefusal::Busy { retry: Duration::from_millis(1500) }.into());
        }
        self.running.fetch_add(1, Ordering::SeqCst);
        let guard = Running(self.running.clone());
        let (events, receiver) = mpsc::channel(1);
        let sent = self.sent.clone();
        tokio::spawn(async move {
            let _guard = guard;
            // The receiver goes when the router drops the stream.
            tokio::select! {
                () = replay(addressed, script, &events, &sent) => {}
                () = events.closed() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn build(
        &self,
        _: Request<Streaming<proto::BuildRequest>>,
    ) -> Result<Response<Self::BuildStream>, Status> {
        Err(Status::unimplemented("a stub builds nothing"))
    }

    async fn lease(&self, _: Request<proto::LeaseRequest>) -> Result<Response<proto::LeaseResponse>, Status> {
        Err(Status::unimplemented("a stub holds nothing"))
    }

    async fn release(
        &self,
        _: Request<proto::ReleaseRequest>,
    ) -> Result<Response<proto::ReleaseResponse>, Status> {
        Err(Status::unimplemented("a stub holds nothing"))
    }
}

async fn replay(
    addressed: Addressed,
    script: Script,
    events: &mpsc::Sender<Result<GenerateEvent, Status>>,
    sent: &AtomicUsize,
) {
    let order = addressed.order;
    let give = async |event: TokenEvent| {
        let message = GenerateEvent::try_from(event).expect("converts");
        let taken = events.send(Ok(message)).await.is_ok();
        sent.fetch_add(1, Ordering::SeqCst);
        taken
    };
    tokio::time::sleep(script.before_first).await;
    let prompt: usize = order.pieces.iter().map(|piece| piece.ids.len()).sum();
    let segments = order.pieces.iter().enumerate().filter(|(_, piece)| piece.key.is_some());
    let cold = hypic_domain::flow::ColdReason::Unknown;
    let report = |(piece, _)| SegmentReport { piece, outcome: SegmentOutcome::Built { cold }, by: None };
    let ready = ReadyState {
        counts: PromptCounts { exact: 1, live: prompt as u32 - 1, ..PromptCounts::default() },
        segments: segments.map(report).collect(),
        stations: vec![("compose".to_owned(), hypic_domain::unit::Millis(1.0))],
        gap: order.measure_gap.then_some(0.125),
    };
    give(TokenEvent::Ready(ready)).await;
    for (choice, sampling) in (0..).zip(&order.choices) {
        let ids = script.ids.iter().take(sampling.max_tokens.0 as usize);
        for (own, id) in ids.skip(order.answered.len()).enumerate() {
            if script.dies_after == Some(own) {
                drop(events.send(Err(Status::unavailable("the stub breaks off"))).await);
                return;
            }
            if own > 0 {
                tokio::time::sleep(script.between).await;
            }
            let logprob = sampling.logprobs.map(|_| script.logprob);
            let top = sampling.logprobs.map_or(0, |count| count.min(20));
            let top = (0..top).map(|rank| (id + rank, script.logprob - rank as f32)).collect();
            if !give(TokenEvent::Token(DrawnToken { choice, id: *id, logprob, top })).await {
                return;
            }
        }
        let cut = script.ids.len() > sampling.max_tokens.0 as usize;
        let reason = if cut { FinishReason::Length } else { script.finish };
        give(TokenEvent::Finished { choice, reason }).await;
    }
}

#[tonic::async_trait]
impl Index for Stub {
    async fn locate(
        &self,
        request: Request<proto::LocateRequest>,
    ) -> Result<Response<proto::LocateResponse>, Status> {
        if self.script.lock().expect("lock").index_away {
            return Err(Status::internal("the stub's index is away"));
        }
        let located = request.into_inner().keys.iter().map(|_| proto::Located::default()).collect();
        Ok(Response::new(proto::LocateResponse { epoch: 1, located }))
    }

    async fn announce(
        &self,
        _: Request<proto::AnnounceRequest>,
    ) -> Result<Response<proto::AnnounceResponse>, Status> {
        Err(Status::unimplemented("a stub keeps no index"))
    }

    async fn grant(&self, _: Request<proto::GrantRequest>) -> Result<Response<proto::GrantResponse>, Status> {
        Err(Status::unimplemented("a stub keeps no index"))
    }
}
