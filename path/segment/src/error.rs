//! What can go wrong: at load (the process names the file and exits) and per request (a 400).

use std::path::PathBuf;

use hypic_domain::unit::Tokens;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a model's text files or a request were refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// Load: a file cannot be read.
    #[error("cannot read '{}'", file.display())]
    ReadFile {
        /// Which.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Load: a file is not the JSON it should be.
    #[error("cannot parse '{}'", file.display())]
    ParseFile {
        /// Which.
        file: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// Load: a field of a file cannot be used.
    #[error("'{}': '{field}' {reason}", file.display())]
    RefuseSetting {
        /// Which file.
        file: PathBuf,
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Load: the tokenizer library refuses the file.
    #[error("cannot load the tokenizer '{}'", file.display())]
    LoadTokeniser {
        /// Which.
        file: PathBuf,
        /// Why.
        source: Cause,
    },
    /// Load: the chat template has a fault or cannot render one plain user turn.
    #[error("the chat template in '{}' is broken at line {line}", file.display())]
    CompileTemplate {
        /// The file that holds it.
        file: PathBuf,
        /// Line in the template, from 1; 0 where it is not known.
        line: usize,
        /// Why.
        source: minijinja::Error,
    },
    /// Request: a field is wrong.
    #[error("'{param}' {reason}")]
    InvalidRequest {
        /// Path of the field, as `messages[1].content`.
        param: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Request: prompt and answer do not fit into the context.
    #[error(
        "the context holds {} tokens; the prompt has {}{}, and {} are requested for the answer",
        limit.0, if *is_counted { "" } else { "at least " }, prompt.0, requested.0
    )]
    ContextLength {
        /// `messages` or `prompt`.
        param: &'static str,
        /// Tokens of the context.
        limit: Tokens,
        /// Tokens of the prompt.
        prompt: Tokens,
        /// Tokens asked for; 1 where the request names none.
        requested: Tokens,
        /// Whether the prompt's tokens were counted; else there are at least so many, of a text that is far too long.
        is_counted: bool,
    },
    /// Request: the template fails on this conversation, or says itself that it will not have it.
    #[error("the chat template refuses the conversation: {reason}")]
    RenderTemplate {
        /// The template's own words where it raised, else the engine's.
        reason: String,
        /// Why.
        source: minijinja::Error,
    },
    /// Request: the tokenizer library fails on a text.
    #[error("cannot tokenise the prompt")]
    Tokenise {
        /// Why.
        source: Cause,
    },
}

impl SegmentError {
    pub(crate) fn invalid(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidRequest { param: param.into(), reason: reason.into() }
    }

    pub(crate) fn render(source: minijinja::Error) -> Self {
        let reason = source.detail().map_or_else(|| source.kind().to_string(), str::to_owned);
        Self::RenderTemplate { reason, source }
    }

    /// The field of the request at fault, for OpenAI's `error.param`.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::InvalidRequest { param, .. } => Some(param),
            Self::ContextLength { param, .. } => Some(param),
            Self::RenderTemplate { .. } => Some("messages"),
            _ => None,
        }
    }

    /// OpenAI's `error.code`, where clients act on one.
    pub fn code(&self) -> Option<&'static str> {
        matches!(self, Self::ContextLength { .. }).then_some("context_length_exceeded")
    }

    /// Whether the client is at fault: a 400. All else is the server's, or happens at load only.
    pub fn is_clients(&self) -> bool {
        matches!(self, Self::InvalidRequest { .. } | Self::ContextLength { .. } | Self::RenderTemplate { .. })
    }
}
