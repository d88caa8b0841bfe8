//! The agent service: describe, generate, build, lease.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use hypic_domain::id::Epoch;
use hypic_domain::topology::AgentRole;
use hypic_wire::convert::order::{Addressed, BuildOrder};
use hypic_wire::convert::tuple::{LeasedTuple, not_leased};
use hypic_wire::convert::{identity, key};
use hypic_wire::proto;
use hypic_wire::proto::agent_server::Agent as Service;
use hypic_wire::proto::build_request::Message;
use hypic_wire::status::Refusal;
use hypic_wire::trace::adopt_grpc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use crate::builds;
use crate::engine::EngineError;
use crate::generate::generate;
use crate::grpc::describe::describe;
use crate::life::Life;

/// Build events that wait for the asker.
const BUILD_EVENTS: usize = 64;
/// How soon a refused order may come again.
const RETRY: Duration = Duration::from_secs(1);

/// Serves an [`Agent`](crate::agent::Agent), once there is one.
pub struct AgentService(pub Arc<Life>);

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Service for AgentService {
    type GenerateStream = Events<proto::GenerateEvent>;
    type BuildStream = Events<proto::BuildEvent>;

    async fn describe(
        &self,
        request: Request<proto::DescribeRequest>,
    ) -> Result<Response<proto::DescribeResponse>, Status> {
        let agent = self.0.agent()?;
        let epoch = agent.membership.epoch();
        if Epoch(request.get_ref().epoch) < epoch {
            return Err(Refusal::OldEpoch { epoch }.into());
        }
        Ok(Response::new(describe(agent)?))
    }

    async fn generate(
        &self,
        request: Request<proto::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let agent = self.0.agent()?;
        agent.ready()?;
        if agent.role != AgentRole::Combine {
            return Err(Refusal::NotServing { why: "a scatter worker composes nothing".to_owned() }.into());
        }
        let (metadata, _, request) = request.into_parts();
        let addressed = Addressed::try_from(request).map_err(Refusal::from)?;
        agent.check_identity(&addressed.identity)?;
        let span =
            tracing::info_span!("compose", id = %addressed.order.id, mode = addressed.order.mode.name());
        adopt_grpc(&span, &metadata);
        agent.metrics.orders.inc();
        let answer = span.in_scope(|| generate(agent, addressed.order));
        let events = answer.map(|event| match event {
            Ok(event) => proto::GenerateEvent::try_from(event)
                .map_err(|error| Refusal::Failed { why: error.to_string() }.into()),
            Err(error) => Err(refusal(&error).into()),
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn build(
        &self,
        request: Request<Streaming<proto::BuildRequest>>,
    ) -> Result<Response<Self::BuildStream>, Status> {
        let agent = self.0.agent()?;
        let (metadata, _, mut messages) = request.into_parts();
        let order = match messages.message().await?.and_then(|first| first.message) {
            Some(Message::Start(start)) => BuildOrder::try_from(start).map_err(Refusal::from)?,
            _ => return Err(Refusal::Malformed { why: "a build begins with its start".to_owned() }.into()),
        };
        // Not before: a call can be open for a while until its order comes.
        agent.ready()?;
        agent.check_identity(&order.identity)?;
        let span = tracing::info_span!("build", id = %order.id, segments = order.segments.len());
        adopt_grpc(&span, &metadata);
        agent.metrics.build_orders.inc();
        let (credit, credits) = mpsc::unbounded_channel();
        tokio::spawn(pass_on(messages, credit));
        let (tell, events) = mpsc::channel(BUILD_EVENTS);
        tokio::spawn(builds::build(Arc::clone(agent), order, credits, tell).instrument(span));
        let events = ReceiverStream::new(events).map(|event| Ok(event.into()));
        Ok(Response::new(Box::pin(events)))
    }

    async fn lease(
        &self,
        request: Request<proto::LeaseRequest>,
    ) -> Result<Response<proto::LeaseResponse>, Status> {
        let agent = self.0.agent()?;
        let proto::LeaseRequest { epoch: _, identity: asked, keys, ttl_ms } = request.into_inner();
        agent.check_identity(&identity(&asked).map_err(Refusal::from)?)?;
        let mut leased = Vec::with_capacity(keys.len());
        for bytes in keys {
            let key = key("key", &bytes).map_err(Refusal::from)?;
            leased.push(match agent.held(key, None).await {
                Ok(hit) => {
                    let parts = hit.tuple.parts().to_vec();
                    let specs = parts.iter().map(|part| part.spec().clone()).collect();
                    let (lease, ticket) = agent.leases.grant(key, parts, Duration::from_millis(ttl_ms));
                    let manifest = hit.tuple.encoded_manifest().clone();
                    LeasedTuple { key, manifest, lease, ticket, parts: specs }.into()
                }
                Err(_) => not_leased(key),
            });
        }
        let incarnation = agent.membership.incarnation.0;
        Ok(Response::new(proto::LeaseResponse { leased, incarnation }))
    }

    async fn release(
        &self,
        request: Request<proto::ReleaseRequest>,
    ) -> Result<Response<proto::ReleaseResponse>, Status> {
        for lease in request.into_inner().leases {
            self.0.agent()?.leases.release(lease);
        }
        Ok(Response::new(proto::ReleaseResponse {}))
    }
}

/// Passes credit on until the asker closes its side or the build has ended. An asker that stays must not hold the call,
/// and with it an agent that is told to end.
async fn pass_on(mut messages: Streaming<proto::BuildRequest>, credit: mpsc::UnboundedSender<u64>) {
    loop {
        let said = tokio::select! {
            said = messages.message() => said,
            () = credit.closed() => return,
        };
        let Ok(Some(proto::BuildRequest { message })) = said else { return };
        if let Some(Message::Credit(proto::Credit { bytes })) = message
            && credit.send(bytes).is_err()
        {
            return;
        }
    }
}

/// What an engine's error means to the asker.
fn refusal(error: &EngineError) -> Refusal {
    match error {
        EngineError::FitContext { tokens, context: limit } | EngineError::FitPages { tokens, limit } => {
            Refusal::TooLong { tokens: *tokens, limit: *limit }
        }
        EngineError::ComposeOrder { .. } | EngineError::ReadOrder { .. } => {
            Refusal::Malformed { why: chain(error) }
        }
        EngineError::QueueOrder { .. } => Refusal::Busy { retry: RETRY },
        EngineError::ReachEngine => Refusal::NotServing { why: chain(error) },
        _ => Refusal::Failed { why: chain(error) },
    }
}

/// The message with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}
