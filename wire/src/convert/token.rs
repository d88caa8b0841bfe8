//! The stream of tokens.

use hypic_domain::flow::{DrawnToken, TokenEvent};
use hypic_domain::sampling::FinishReason;

use super::{finite, from_json, from_name, to_json, to_name};
use crate::proto::generate_event::Event;
use crate::{Error, proto};

impl TryFrom<TokenEvent> for proto::GenerateEvent {
    type Error = Error;

    fn try_from(event: TokenEvent) -> Result<Self, Error> {
        let event = match event {
            TokenEvent::Ready(state) => Event::Ready(proto::Ready { state: to_json("ready", &state)? }),
            TokenEvent::Token(token) => Event::Tokens(proto::Tokens { tokens: vec![token.into()] }),
            TokenEvent::Finished { choice, reason } => {
                Event::Finished(proto::Finished { choice, reason: to_name("reason", &reason)? })
            }
        };
        Ok(Self { event: Some(event) })
    }
}

/// The events of one message: an agent may send the tokens of a step together.
///
/// # Errors
/// A message without an event, an unknown reason, a number that is not finite.
pub fn from_event(event: proto::GenerateEvent) -> Result<Vec<TokenEvent>, Error> {
    let proto::GenerateEvent { event } = event;
    match event.ok_or(Error::FindField { field: "event" })? {
        Event::Ready(proto::Ready { state }) => Ok(vec![TokenEvent::Ready(from_json("ready", &state)?)]),
        Event::Tokens(proto::Tokens { tokens }) => {
            tokens.into_iter().map(|token| Ok(TokenEvent::Token(token.try_into()?))).collect()
        }
        Event::Finished(proto::Finished { choice, reason }) => {
            let reason: FinishReason = from_name("reason", &reason)?;
            Ok(vec![TokenEvent::Finished { choice, reason }])
        }
    }
}

impl From<DrawnToken> for proto::DrawnToken {
    fn from(token: DrawnToken) -> Self {
        let DrawnToken { choice, id, logprob, top } = token;
        let top = top.into_iter().map(|(id, logprob)| proto::TopLogprob { id, logprob }).collect();
        Self { choice, id, logprob, top }
    }
}

impl TryFrom<proto::DrawnToken> for DrawnToken {
    type Error = Error;

    fn try_from(token: proto::DrawnToken) -> Result<Self, Error> {
        let proto::DrawnToken { choice, id, logprob, top } = token;
        let top = top
            .into_iter()
            .map(|proto::TopLogprob { id, logprob }| Ok((id, finite("logprob", logprob)?)))
            .collect::<Result<_, Error>>()?;
        Ok(Self { choice, id, logprob: logprob.map(|value| finite("logprob", value)).transpose()?, top })
    }
}
