//! A request's way through the router, top to bottom: admit → segment → lookup → schedule → generate.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt, stream};
use hypic_domain::flow::{Order, Placement, Request, SegmentedRequest};
use hypic_domain::id::{AgentId, RequestId};
use hypic_domain::key::Identity;
use hypic_domain::prompt::Prompt;
use hypic_domain::sampling::Sampling;
use hypic_domain::unit::{Millis, Tokens};
use hypic_segment::{SegmentError, Segmenter};
use hypic_wire::convert::order::Addressed;
use hypic_wire::status::Refusal as PeerRefusal;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{Instrument, info_span};

use crate::admission::Place;
use crate::answer::Answer;
use crate::answer::markup::Reading;
use crate::fleet_view::poll;
use crate::front::{Account, Front, Question, Served, Step};
use crate::generate::{Answering, FirstToken, Lost, PromptFacts, generate};
use crate::http::options::Options;
use crate::lookup::{Found, IndexClient};
use crate::metrics::{Metrics, observe};
use crate::refusal::Refusal;
use crate::schedule::schedule;
use crate::temperature::Temperature;
use crate::tenant::Policy;

/// An agent that does not describe itself within this is not waited for when nobody else is left.
const ASK_ANEW: Duration = Duration::from_millis(500);

/// Takes a request in and cuts it; the answer's stream does the rest.
///
/// # Errors
/// Whatever a client should learn as a status: after this the answer may begin.
pub async fn serve(front: &Arc<Front>, policy: &Policy, question: Question) -> Result<Served, Refusal> {
    let mode = policy.mode(question.options.mode.as_deref(), front.model.policy)?;
    check_ids(&question.options.sampling, front.segmenter.vocab())?;
    let fleet = front.fleet.snapshot();
    let identity = fleet.identity.filter(|_| fleet.is_ready()).ok_or(Refusal::FindAgent)?;
    let id = RequestId(hex::encode(rand::random::<[u8; 12]>()));

    let place = info_span!("admit").in_scope(|| front.admission.admit(&policy.tenant, policy.concurrent))?;

    let started = Instant::now();
    let Question { prompt, options, reading, logprobs, arrived } = question;
    let deadline = arrived + front.bounds.deadline;
    let request = Request {
        id: id.clone(),
        tenant: policy.tenant.clone(),
        scope: policy.scope(&front.secret),
        model: front.model.name.clone(),
        mode,
        prompt,
        sampling: sampling(&options, &front.segmenter, logprobs),
        deadline: Some(deadline),
    };
    let segmented = segment(front, request, identity).instrument(info_span!("segment")).await?;
    observe(&front.metrics.segment_seconds, started.elapsed());
    front.metrics.segments_per_request.observe(segmented.segments().count() as f64);
    let stations = vec![("segment".to_owned(), millis(started.elapsed()))];

    let plan = Plan { options, reading, logprobs, arrived, deadline, identity, stations: stations.clone() };
    let front = front.clone();
    let span = tracing::Span::current();
    let steps = driven(|steps| {
        let last_word = steps.clone();
        async move {
            let mut watch = Abandoned { metrics: front.metrics.clone(), armed: true };
            let answered = answer(&front, plan, place, segmented, steps).await;
            watch.armed = false;
            let last = answered.map(Step::Done);
            if let Err(refusal) = &last {
                let reason = refusal.code().unwrap_or("internal_error");
                tracing::warn!(%refusal, "an answer ended early");
                front.metrics.observe_cut(reason);
            }
            // The receiver only goes with the stream that drives this.
            drop(last_word.send(last).await);
        }
        .instrument(span)
    });
    Ok(Served { id, stations, steps: Box::pin(steps) })
}

/// What the second half of the way needs of the first.
struct Plan {
    options: Options,
    reading: Reading,
    logprobs: Option<u32>,
    arrived: Instant,
    deadline: Instant,
    identity: Identity,
    stations: Vec<(String, Millis)>,
}

/// Waits for the request's turn, places it and lets it be answered, within its deadline.
async fn answer(
    front: &Arc<Front>,
    plan: Plan,
    place: Place,
    segmented: SegmentedRequest,
    steps: mpsc::Sender<Result<Step, Refusal>>,
) -> Result<Account, Refusal> {
    let deadline = tokio::time::Instant::from_std(plan.deadline);
    tokio::select! {
        account = tokio::time::timeout_at(deadline, answer_in_turn(front, plan, place, segmented, steps)) => {
            account.map_err(|_| Refusal::MeetDeadline)?
        }
        () = front.stop.cancelled() => Err(Refusal::ShutDown),
    }
}

async fn answer_in_turn(
    front: &Arc<Front>,
    plan: Plan,
    place: Place,
    segmented: SegmentedRequest,
    steps: mpsc::Sender<Result<Step, Refusal>>,
) -> Result<Account, Refusal> {
    let Plan { options, reading, logprobs, arrived, deadline, identity, mut stations } = plan;
    let (_turn, waited) = place.turn().instrument(info_span!("admit")).await?;
    observe(&front.metrics.admit_seconds, waited);
    stations.insert(0, ("admit".to_owned(), millis(waited)));

    let started = Instant::now();
    let index = IndexClient {
        fleet: &front.fleet,
        channels: &front.channels,
        metrics: &front.metrics,
        timeout: front.bounds.lookup,
    };
    let found = index.lookup(segmented).instrument(info_span!("lookup")).await;
    observe(&front.metrics.lookup_seconds, started.elapsed());
    stations.push(("lookup".to_owned(), millis(started.elapsed())));

    let segmented = &found.located.segmented;
    let (mode, prompt_tokens) = (segmented.request.mode, segmented.tokens());
    let first =
        FirstToken { arrived, mode: mode.name(), streamed: options.stream, cold: false, observed: None };
    let reading = Reading { thinking: opens_reasoning(segmented, &front.segmenter), ..reading };
    let answers = (0..options.choices)
        .map(|_| Answer::new(reading.clone(), &options.stop, options.sampling.min_tokens.0));
    let choices = choices(&options, segmented, front.segmenter.context());
    let tokeniser = front.segmenter.tokeniser();
    let mut answering =
        Answering::new(answers.collect(), tokeniser, logprobs, first, front.metrics.clone(), steps);

    let param = match segmented.request.prompt {
        Prompt::Chat(_) => "messages",
        Prompt::Text(_) | Prompt::Ids(_) => "prompt",
    };
    let facts = PromptFacts { located: &found.located.located, away: &found.away, param };
    let (mut excluded, mut busy, mut asked_anew, mut counted) = (Vec::new(), None, false, false);
    while !answering.is_complete() {
        let started = Instant::now();
        let snapshot = front.fleet.snapshot();
        let placement =
            info_span!("schedule").in_scope(|| schedule(&found.located, &snapshot, &front.model, &excluded));
        let placement = match placement {
            // An agent may have become ready since it was asked last: nobody is sent away on old news.
            Err(Refusal::FindAgent) if !asked_anew => {
                asked_anew = true;
                poll::round(&front.fleet, &front.channels, ASK_ANEW).await;
                continue;
            }
            placement => placement.map_err(|refusal| exhausted(refusal, &answering, busy))?,
        };
        observe(&front.metrics.schedule_seconds, started.elapsed());
        stations.push(("schedule".to_owned(), millis(started.elapsed())));

        // Once a request, however often it is placed.
        if !std::mem::replace(&mut counted, true)
            && let Some(temperature) = Temperature::of(&found.located, &placement)
        {
            front.metrics.observe_lookup(&temperature);
            answering.set_cold(temperature.cold);
        }
        let Some(agent) = snapshot.topology.agent(&placement.combine) else { return Err(Refusal::Internal) };
        let answered = answering.resumable().ok_or(Refusal::KeepAgent)?.to_vec();
        let _sent = front.fleet.sent(&agent.id, u64::from(prompt_tokens.0));
        let order = Addressed {
            epoch: snapshot.topology.epoch,
            identity,
            order: order(&found, placement, choices.clone(), deadline, answered, options.measure_gap),
        };
        let run = generate(&front.channels, agent, order, &facts, &mut answering);
        match run.instrument(info_span!("generate", agent = %agent.id)).await {
            Ok(()) => front.fleet.worked(&agent.id),
            Err(Lost::Here(refusal)) => return Err(refusal),
            Err(Lost::Elsewhere(refusal)) => {
                if let PeerRefusal::Busy { retry } = refusal {
                    busy = Some(retry);
                }
                give_up(front, &agent.id, &refusal);
                excluded.push(agent.id.clone());
                let moment = if answering.has_begun() { "after_first_token" } else { "before_first_token" };
                front.metrics.moved.with_label_values(&[moment]).inc();
            }
        }
    }

    let answer_tokens = answering.tokens();
    let (ready, first_token) = answering.into_account();
    stations.extend(ready.stations.iter().cloned());
    stations.extend(first_token.map(|seconds| ("first_token".to_owned(), Millis(seconds * 1e3))));
    stations.push(("total".to_owned(), millis(arrived.elapsed())));
    Ok(Account { mode, prompt_tokens: prompt_tokens.0, answer_tokens, ready, stations })
}

/// Cuts the prompt on a blocking thread.
async fn segment(
    front: &Arc<Front>,
    request: Request,
    identity: Identity,
) -> Result<SegmentedRequest, Refusal> {
    let segmenter = front.segmenter.clone();
    let segmented = front.cpu.run(move || segmenter.segment(request, &identity)).await?;
    segmented.map_err(|error| match error {
        SegmentError::ContextLength { param, limit, prompt, requested, is_counted } => {
            Refusal::ExceedContext {
                limit: limit.0,
                prompt: prompt.0,
                is_counted,
                answer: requested.0,
                param: param.to_owned(),
            }
        }
        error if error.is_clients() => {
            Refusal::BadRequest { message: error.to_string(), param: error.param().map(str::to_owned) }
        }
        error => {
            tracing::error!(%error, "a prompt could not be cut");
            Refusal::Internal
        }
    })
}

/// How tokens are drawn, the same for all choices.
fn sampling(options: &Options, segmenter: &Segmenter, logprobs: Option<u32>) -> Sampling {
    let mut sampling = options.sampling.clone();
    if !options.ignore_eos {
        sampling.stop_ids.extend_from_slice(segmenter.end_ids());
    }
    sampling.logprobs = logprobs;
    sampling.max_tokens = Tokens(options.max_tokens.unwrap_or(u32::MAX));
    sampling.seed = options.seed.unwrap_or_else(rand::random);
    sampling
}

/// One sampling per choice: their seeds differ, and the context bounds them.
fn choices(options: &Options, segmented: &SegmentedRequest, context: Tokens) -> Vec<Sampling> {
    let base = &segmented.request.sampling;
    let left = Tokens(context.0.saturating_sub(segmented.tokens().0));
    let choice = |place: u32| Sampling {
        seed: base.seed.wrapping_add(u64::from(place)),
        max_tokens: base.max_tokens.min(left),
        ..base.clone()
    };
    (0..options.choices).map(choice).collect()
}

fn order(
    found: &Found,
    placement: Placement,
    choices: Vec<Sampling>,
    deadline: Instant,
    answered: Vec<u32>,
    measure_gap: bool,
) -> Order {
    let SegmentedRequest { request, pieces, boundaries } = &found.located.segmented;
    Order {
        id: request.id.clone(),
        tenant: request.tenant.clone(),
        scope: request.scope,
        mode: request.mode,
        pieces: pieces.clone(),
        boundaries: boundaries.clone(),
        sources: placement.sources,
        snapshot: placement.snapshot,
        choices,
        deadline: Some(millis(deadline.saturating_duration_since(Instant::now()))),
        answered,
        measure_gap,
    }
}

/// Ids that are no tokens are refused before anything runs.
fn check_ids(sampling: &Sampling, vocab: usize) -> Result<(), Refusal> {
    let known = |id: u32| (id as usize) < vocab;
    if let Some((id, _)) = sampling.logit_bias.iter().find(|(id, _)| !known(*id)) {
        return Err(Refusal::bad(format!("logit_bias.{id}"), format!("{id} is no token of this model")));
    }
    if let Some(id) = sampling.stop_ids.iter().find(|id| !known(**id)) {
        return Err(Refusal::bad("stop_token_ids", format!("{id} is no token of this model")));
    }
    Ok(())
}

/// Whether the prompt ends inside an open `<think>` that the template wrote.
fn opens_reasoning(segmented: &SegmentedRequest, segmenter: &Segmenter) -> bool {
    let (Some(last), Some(open)) = (segmented.pieces.last(), segmenter.tokeniser().id("<think>")) else {
        return false;
    };
    let close = segmenter.tokeniser().id("</think>");
    let last_mark = last.ids.iter().rev().find(|id| **id == open || Some(**id) == close);
    last_mark == Some(&open)
}

/// What is to be thought of an agent after it refused.
fn give_up(front: &Front, agent: &AgentId, refusal: &PeerRefusal) {
    match refusal {
        PeerRefusal::Unreachable { .. } | PeerRefusal::NotServing { .. } => front.fleet.lost(agent),
        PeerRefusal::Failed { .. } | PeerRefusal::Cancelled => front.fleet.failed(agent),
        // These say nothing against the agent.
        PeerRefusal::WrongOwner { .. }
        | PeerRefusal::OldEpoch { .. }
        | PeerRefusal::Identity
        | PeerRefusal::Busy { .. }
        | PeerRefusal::Forbidden { .. }
        | PeerRefusal::Malformed { .. }
        | PeerRefusal::TooLong { .. }
        | PeerRefusal::Deadline => {}
    }
}

/// What is said when no agent is left.
fn exhausted(refusal: Refusal, answering: &Answering, busy: Option<Duration>) -> Refusal {
    match (refusal, busy) {
        (Refusal::FindAgent, _) if answering.has_begun() => Refusal::KeepAgent,
        (Refusal::FindAgent, Some(retry_after)) => Refusal::Admit { retry_after },
        (refusal, _) => refusal,
    }
}

/// Counts a client that went away: its stream is dropped before the end.
struct Abandoned {
    metrics: Arc<Metrics>,
    armed: bool,
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if self.armed {
            self.metrics.abandoned.inc();
        }
    }
}

/// The steps that a future sends, as a stream that drives the future. Nothing runs unless somebody reads,
/// one step waits at most, and dropping the stream drops the future and all it owns.
fn driven<T, F>(start: impl FnOnce(mpsc::Sender<T>) -> F) -> impl Stream<Item = T>
where
    F: Future<Output = ()>,
{
    let (steps, received) = mpsc::channel(1);
    let driver = stream::once(start(steps)).filter_map(|()| std::future::ready(None));
    stream::select(driver, ReceiverStream::new(received))
}

fn millis(duration: Duration) -> Millis {
    Millis(duration.as_secs_f64() * 1e3)
}
