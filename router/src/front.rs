//! What requests share, and what travels between the HTTP layer and the path.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use hypic_domain::flow::{Mode, ReadyState};
use hypic_domain::id::RequestId;
use hypic_domain::prompt::Prompt;
use hypic_domain::serving::ModelFile;
use hypic_domain::unit::Millis;
use hypic_segment::Segmenter;
use hypic_wire::channel::Channels;
use hypic_wire::follow::Live;
use tokio_util::sync::CancellationToken;

use crate::admission::{Admission, CpuWork};
use crate::answer::markup::Reading;
use crate::answer::{Delta, Finish};
use crate::error::RouterError;
use crate::fleet_view::FleetView;
use crate::http::options::Options;
use crate::metrics::Metrics;
use crate::refusal::Refusal;
use crate::tenant::Tenants;

/// Everything that requests share.
pub struct Front {
    /// How the model is served.
    pub model: ModelFile,
    /// Cuts prompts.
    pub segmenter: Arc<Segmenter>,
    /// Who is there.
    pub fleet: Arc<FleetView>,
    /// Connections to them.
    pub channels: Arc<Channels>,
    /// Who may run.
    pub admission: Admission,
    /// Bounds parsing and tokenising.
    pub cpu: CpuWork,
    /// Who may ask.
    pub tenants: Live<Tenants, RouterError>,
    /// Makes scopes of tenants.
    pub secret: [u8; 32],
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Bounds of a request.
    pub bounds: Bounds,
    /// Cancelled when requests should no longer be sent here.
    pub leaving: CancellationToken,
    /// Cancelled when running answers must end now.
    pub stop: CancellationToken,
}

/// Bounds of a request.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Largest body in bytes.
    pub body: usize,
    /// From arrival to the last token.
    pub deadline: Duration,
    /// For one question to the index.
    pub lookup: Duration,
    /// Comment lines in silent streams this often; zero for none.
    pub keep_alive: Duration,
}

/// A request as the HTTP layer read it.
#[derive(Debug)]
pub struct Question {
    /// What is to be answered.
    pub prompt: Prompt,
    /// How.
    pub options: Options,
    /// How the answer's text is read.
    pub reading: Reading,
    /// `Some(n)`: log probabilities of drawn tokens and of the `n` likeliest.
    pub logprobs: Option<u32>,
    /// When it came.
    pub arrived: Instant,
}

/// What an answer consists of, in order of arrival.
#[derive(Debug)]
pub enum Step {
    /// More of one choice.
    Delta {
        /// Which.
        choice: u32,
        /// What.
        delta: Delta,
    },
    /// One choice is complete.
    Finished {
        /// Which.
        choice: u32,
        /// Why.
        finish: Finish,
    },
    /// All are: the last step.
    Done(Account),
}

/// What an answer cost.
#[derive(Clone, Debug)]
pub struct Account {
    /// How it was computed.
    pub mode: Mode,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of all choices.
    pub answer_tokens: u32,
    /// What the agent said of the prompt.
    pub ready: ReadyState,
    /// Milliseconds per station, the router's and then the agent's.
    pub stations: Vec<(String, Millis)>,
}

/// A request on its way.
pub struct Served {
    /// Its name, for logs and clients.
    pub id: RequestId,
    /// Milliseconds of the stations behind it.
    pub stations: Vec<(String, Millis)>,
    /// Its answer. Dropping it frees everything the request holds, here and on the agents.
    pub steps: Pin<Box<dyn Stream<Item = Result<Step, Refusal>> + Send>>,
}
