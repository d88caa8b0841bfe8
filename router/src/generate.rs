//! Station generate: the order goes to the combine agent, its tokens come back as text.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use hypic_domain::flow::{ColdReason, DrawnToken, Located, ReadyState, SegmentOutcome, TokenEvent};
use hypic_domain::id::AgentId;
use hypic_domain::sampling::FinishReason;
use hypic_domain::topology::AgentEntry;
use hypic_segment::{Detokeniser, Tokeniser};
use hypic_wire::channel::Channels;
use hypic_wire::convert::order::Addressed;
use hypic_wire::convert::token::from_event;
use hypic_wire::proto::GenerateRequest;
use hypic_wire::status::Refusal as PeerRefusal;
use hypic_wire::trace;
use tokio::sync::mpsc;

use crate::answer::{Answer, Delta, Finish, Scored, ScoredToken};
use crate::front::Step;
use crate::metrics::{Metrics, observe};
use crate::refusal::Refusal;

/// JSON has no infinity: what a client reads for a token that cannot be drawn.
const LOWEST: f32 = -9999.0;

/// One choice of the answer.
struct Choice {
    answer: Answer,
    text: Detokeniser,
    /// Its ids, with which another agent could go on.
    ids: Vec<u32>,
}

/// An answer in the making. It outlives the agent that began it.
pub(crate) struct Answering {
    choices: Vec<Choice>,
    tokeniser: Arc<Tokeniser>,
    logprobs: Option<u32>,
    ready: Option<ReadyState>,
    last_token: Option<Instant>,
    first: FirstToken,
    metrics: Arc<Metrics>,
    steps: mpsc::Sender<Result<Step, Refusal>>,
}

/// When the first token counts as given: streamed with its text, unstreamed when it is drawn.
pub(crate) struct FirstToken {
    pub(crate) arrived: Instant,
    pub(crate) mode: &'static str,
    pub(crate) streamed: bool,
    /// A segment of the prompt was nowhere.
    pub(crate) cold: bool,
    pub(crate) observed: Option<f64>,
}

/// Why an agent did not finish an answer.
#[derive(Debug)]
pub(crate) enum Lost {
    /// Another agent may go on.
    Elsewhere(PeerRefusal),
    /// Nobody may.
    Here(Refusal),
}

impl Answering {
    pub(crate) fn new(
        answers: Vec<Answer>,
        tokeniser: &Arc<Tokeniser>,
        logprobs: Option<u32>,
        first: FirstToken,
        metrics: Arc<Metrics>,
        steps: mpsc::Sender<Result<Step, Refusal>>,
    ) -> Self {
        let choice =
            |answer| Choice { answer, text: Detokeniser::new(tokeniser.clone(), true), ids: Vec::new() };
        Self {
            choices: answers.into_iter().map(choice).collect(),
            tokeniser: tokeniser.clone(),
            logprobs,
            ready: None,
            last_token: None,
            first,
            metrics,
            steps,
        }
    }

    /// Says whether a segment of the prompt was nowhere when it was looked up.
    pub(crate) fn set_cold(&mut self, cold: bool) {
        self.first.cold = cold;
    }

    /// Whether every choice has ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.answer.finish().is_some())
    }

    /// Whether a token has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.last_token.is_some()
    }

    /// The ids with which another agent can go on; `None` when there are several answers under way.
    pub(crate) fn resumable(&self) -> Option<&[u32]> {
        match self.choices.as_slice() {
            [only] => Some(&only.ids),
            _ => (!self.has_begun()).then_some(&[]),
        }
    }

    /// Tokens of all choices.
    pub(crate) fn tokens(&self) -> u32 {
        self.choices.iter().map(|choice| choice.answer.tokens()).sum()
    }

    /// What the agent said of the prompt, and seconds to the first token.
    pub(crate) fn into_account(self) -> (ReadyState, Option<f64>) {
        (self.ready.unwrap_or_default(), self.first.observed)
    }

    async fn take(&mut self, event: TokenEvent, prompt: &PromptFacts<'_>) -> Result<(), Lost> {
        match event {
            TokenEvent::Ready(mut ready) => {
                // After a move the first account stays: it is the one that the first token was had by.
                if self.ready.is_none() {
                    prompt.name_reasons(&mut ready);
                    self.metrics.observe_ready(&ready);
                    self.ready = Some(ready);
                }
                Ok(())
            }
            TokenEvent::Token(token) => self.token(token).await,
            TokenEvent::Finished { choice, reason } => self.finished(choice, reason).await,
        }
    }

    async fn token(&mut self, token: DrawnToken) -> Result<(), Lost> {
        let DrawnToken { choice: index, id, logprob, top } = token;
        let Some(choice) = self.choices.get_mut(index as usize) else {
            return Err(Lost::Here(unknown_choice(index)));
        };
        if choice.answer.finish().is_some() {
            return Ok(());
        }
        let now = Instant::now();
        if let Some(last) = self.last_token.replace(now) {
            observe(&self.metrics.token_gap_seconds, now - last);
        }
        self.metrics.answer_tokens.inc();
        choice.ids.push(id);
        let scored = |id: u32, logprob: f32| Scored {
            bytes: self.tokeniser.token_bytes(id).unwrap_or_default(),
            logprob: logprob.max(LOWEST),
        };
        let score = self.logprobs.map(|count| ScoredToken {
            token: scored(id, logprob.unwrap_or(LOWEST)),
            top: top.into_iter().take(count as usize).map(|(id, logprob)| scored(id, logprob)).collect(),
            offset: choice.answer.characters(),
        });
        let text = choice.text.push(id);
        let delta = choice.answer.token(&text, score);
        let finish = choice.answer.finish();
        if !self.first.streamed {
            self.first.observe(&self.metrics);
        }
        self.give(index, delta, finish).await
    }

    async fn finished(&mut self, index: u32, reason: FinishReason) -> Result<(), Lost> {
        if reason == FinishReason::Cancelled {
            // Whoever asked is still here, so what ended it is the deadline, which the agent keeps too.
            return Err(Lost::Here(Refusal::MeetDeadline));
        }
        let Some(choice) = self.choices.get_mut(index as usize) else {
            return Err(Lost::Here(unknown_choice(index)));
        };
        if choice.answer.finish().is_some() {
            return Ok(());
        }
        let tail = choice.text.finish();
        let delta = choice.answer.end(&tail, reason);
        let finish = choice.answer.finish();
        self.give(index, delta, finish).await
    }

    async fn give(&mut self, choice: u32, delta: Delta, finish: Option<Finish>) -> Result<(), Lost> {
        if !delta.is_empty() {
            self.send(Step::Delta { choice, delta }).await?;
            self.first.observe(&self.metrics);
        }
        match finish {
            Some(finish) => self.send(Step::Finished { choice, finish }).await,
            None => Ok(()),
        }
    }

    async fn send(&self, step: Step) -> Result<(), Lost> {
        // The receiver only goes with the future that this runs in.
        self.steps.send(Ok(step)).await.map_err(|_| Lost::Here(Refusal::Internal))
    }
}

impl FirstToken {
    fn observe(&mut self, metrics: &Metrics) {
        if self.observed.is_none() {
            let seconds = self.arrived.elapsed().as_secs_f64();
            metrics.first_token_seconds.with_label_values(&[self.mode]).observe(seconds);
            if self.cold {
                metrics.cold_first_token_seconds.observe(seconds);
            }
            self.observed = Some(seconds);
        }
    }
}

/// What the router knows of a prompt's segments and the agent does not.
pub(crate) struct PromptFacts<'a> {
    /// Beside each piece.
    pub(crate) located: &'a [Located],
    /// Pieces of whose keys nobody could be asked.
    pub(crate) away: &'a HashSet<usize>,
    /// The request's field that holds the prompt.
    pub(crate) param: &'static str,
}

impl PromptFacts<'_> {
    /// An agent that was told to build knows no reason; the router does.
    fn name_reasons(&self, ready: &mut ReadyState) {
        for report in &mut ready.segments {
            let SegmentOutcome::Built { cold } = &mut report.outcome else { continue };
            if *cold != ColdReason::Unknown {
                continue;
            }
            if self.away.contains(&report.piece) {
                *cold = ColdReason::IndexAway;
            } else if self.located.get(report.piece).is_some_and(|located| !located.holders.is_empty()) {
                *cold = ColdReason::CheaperToBuild;
            }
        }
    }
}

/// Runs an order on `agent` until every choice has ended.
pub(crate) async fn generate(
    channels: &Channels,
    agent: &AgentEntry,
    order: Addressed,
    prompt: &PromptFacts<'_>,
    answering: &mut Answering,
) -> Result<(), Lost> {
    let order = GenerateRequest::try_from(order).map_err(|error| {
        tracing::error!(%error, "an order could not be written");
        Lost::Here(Refusal::Internal)
    })?;
    let mut request = tonic::Request::new(order);
    trace::inject(request.metadata_mut());
    let mut client = channels.agent(&agent.control).map_err(|error| lost(&agent.id, prompt, error.into()))?;
    let response = client.generate(request).await.map_err(|status| lost(&agent.id, prompt, status.into()))?;
    let mut messages = response.into_inner();
    while let Some(message) =
        messages.message().await.map_err(|status| lost(&agent.id, prompt, status.into()))?
    {
        let events = from_event(message).map_err(|error| lost(&agent.id, prompt, error.into()))?;
        for event in events {
            answering.take(event, prompt).await?;
        }
        if answering.is_complete() {
            // Dropping the stream ends what the agent may still be at.
            return Ok(());
        }
    }
    let why = "the stream ended before the answer".to_owned();
    Err(lost(&agent.id, prompt, PeerRefusal::Failed { why }))
}

/// Whether what an agent refused may be done elsewhere.
fn lost(agent: &AgentId, prompt: &PromptFacts<'_>, refusal: PeerRefusal) -> Lost {
    tracing::warn!(%agent, %refusal, "an agent did not finish an answer");
    match refusal {
        PeerRefusal::Deadline => Lost::Here(Refusal::MeetDeadline),
        PeerRefusal::Malformed { .. } => Lost::Here(Refusal::Internal),
        PeerRefusal::TooLong { tokens, limit } => Lost::Here(Refusal::ExceedContext {
            limit: limit.0,
            prompt: tokens.0,
            is_counted: true,
            answer: 0,
            param: prompt.param.to_owned(),
        }),
        refusal => Lost::Elsewhere(refusal),
    }
}

fn unknown_choice(choice: u32) -> Refusal {
    tracing::error!(choice, "an agent answered a choice that was not asked for");
    Refusal::Internal
}
