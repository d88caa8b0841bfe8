//! What a client is told when it gets no answer: one type, one table of OpenAI status, type and code.

use std::time::Duration;

use axum::http::StatusCode;

/// Why a request gets no answer, or no further one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The request is wrong.
    #[error("{message}")]
    BadRequest {
        /// What is wrong, for the person who wrote it.
        message: String,
        /// The field, such as `messages[1].content`.
        param: Option<String>,
    },
    /// The prompt and the answer do not fit the model's context.
    #[error(
        "this model's context is {limit} tokens, but {least}{} were asked for ({least}{prompt} in the prompt, {answer} for the answer)",
        u64::from(*prompt) + u64::from(*answer),
        least = if *is_counted { "" } else { "at least " }
    )]
    ExceedContext {
        /// The model's context.
        limit: u32,
        /// Tokens of the prompt.
        prompt: u32,
        /// Whether they were counted; else there are at least so many.
        is_counted: bool,
        /// Tokens asked for as answer.
        answer: u32,
        /// `messages` or `prompt`.
        param: String,
    },
    /// No key, or none that is known.
    #[error("the API key is missing or not known")]
    CheckKey,
    /// The tenant's policy does not allow it.
    #[error("{message}")]
    Forbid {
        /// What is not allowed.
        message: String,
        /// The field.
        param: Option<String>,
    },
    /// No such model.
    #[error("the model '{model}' does not exist")]
    FindModel {
        /// The name asked for, cut to a sane length.
        model: String,
    },
    /// No such path.
    #[error("unknown path")]
    FindPath,
    /// The path exists, the method does not.
    #[error("this path does not take that method")]
    AllowMethod,
    /// The body is larger than the setting.
    #[error("the body is larger than the limit of {limit} bytes")]
    FitBody {
        /// The limit.
        limit: usize,
    },
    /// The queue, or the tenant's share of it, is full.
    #[error("too many requests are waiting; try again later")]
    Admit {
        /// When a place is likely to be free.
        retry_after: Duration,
    },
    /// No agent can take the request now.
    #[error("no agent is ready to answer; try again later")]
    FindAgent,
    /// The deadline passed.
    #[error("the deadline passed before the answer was complete")]
    MeetDeadline,
    /// The agent died and nobody could go on.
    #[error("the agent that answered is gone and the answer could not be continued elsewhere")]
    KeepAgent,
    /// The router is told to stop.
    #[error("the server is shutting down")]
    ShutDown,
    /// A fault of ours; the log says which.
    #[error("internal error")]
    Internal,
}

impl Refusal {
    /// A wrong request, naming the field.
    pub fn bad(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::BadRequest { message: message.into(), param: Some(param.into()) }
    }

    /// The HTTP status, where it can still be sent.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest { .. } | Self::ExceedContext { .. } => StatusCode::BAD_REQUEST,
            Self::CheckKey => StatusCode::UNAUTHORIZED,
            Self::Forbid { .. } => StatusCode::FORBIDDEN,
            Self::FindModel { .. } | Self::FindPath => StatusCode::NOT_FOUND,
            Self::AllowMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::FitBody { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Admit { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::FindAgent | Self::ShutDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::MeetDeadline => StatusCode::GATEWAY_TIMEOUT,
            Self::KeepAgent => StatusCode::BAD_GATEWAY,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// `error.type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::CheckKey => "authentication_error",
            Self::Forbid { .. } => "permission_error",
            Self::Admit { .. } => "rate_limit_error",
            Self::BadRequest { .. }
            | Self::ExceedContext { .. }
            | Self::FindModel { .. }
            | Self::FindPath
            | Self::AllowMethod
            | Self::FitBody { .. } => "invalid_request_error",
            Self::FindAgent | Self::MeetDeadline | Self::KeepAgent | Self::ShutDown | Self::Internal => {
                "server_error"
            }
        }
    }

    /// `error.code`: what client libraries act on.
    pub fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::BadRequest { .. } => return None,
            Self::ExceedContext { .. } => "context_length_exceeded",
            Self::CheckKey => "invalid_api_key",
            Self::Forbid { .. } => "not_allowed",
            Self::FindModel { .. } => "model_not_found",
            Self::FindPath => "unknown_url",
            Self::AllowMethod => "method_not_allowed",
            Self::FitBody { .. } => "request_too_large",
            Self::Admit { .. } => "rate_limit_exceeded",
            Self::FindAgent => "no_agent_ready",
            Self::MeetDeadline => "deadline_exceeded",
            Self::KeepAgent => "agent_lost",
            Self::ShutDown => "shutting_down",
            Self::Internal => "internal_error",
        })
    }

    /// `error.param`.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::BadRequest { param, .. } | Self::Forbid { param, .. } => param.as_deref(),
            Self::ExceedContext { param, .. } => Some(param),
            Self::FindModel { .. } => Some("model"),
            Self::CheckKey
            | Self::FindPath
            | Self::AllowMethod
            | Self::FitBody { .. }
            | Self::Admit { .. }
            | Self::FindAgent
            | Self::MeetDeadline
            | Self::KeepAgent
            | Self::ShutDown
            | Self::Internal => None,
        }
    }
}
