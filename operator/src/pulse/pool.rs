//! One pool: decide → actuate → tell.

use std::future::Future;
use std::time::Duration;

use super::actuator::{ActuateError, Actuator, News, Replicas, Target, Written};
use super::{ScalingPool, ScalingPulse};
use crate::scaling::{Decision, History, Signal, decide};

/// The API server has so long for each call: others' pools wait meanwhile.
const CALL: Duration = Duration::from_secs(5);

/// What is remembered of one pool.
#[derive(Default)]
pub(super) struct PoolWatch {
    history: History,
    /// What was read or written since the fleet was registered for the so manieth time: newer than what was
    /// registered.
    learnt: Option<(u64, Replicas)>,
    /// What the message is of, and the message with the figures at that time.
    said: Option<(Said, String)>,
    /// The last signal was whole.
    whole: bool,
}

/// A pool at one time.
pub(super) struct Scene<'a> {
    pub(super) pool: &'a ScalingPool,
    pub(super) target: Target,
    /// Number of the registration that `pool` is from.
    pub(super) registration: u64,
    pub(super) signal: &'a Signal,
    pub(super) now: Duration,
}

/// While all of this stays, so does the message.
#[derive(PartialEq)]
struct Said {
    reason: &'static str,
    desired: i32,
    recommended: i32,
    frozen: bool,
    advisory: bool,
    externally: Option<String>,
}

impl PoolWatch {
    /// The number that the pool asks for, as far as is known.
    pub(super) fn replicas(&self, pool: &ScalingPool, registration: u64) -> Replicas {
        match &self.learnt {
            Some((since, learnt)) if *since == registration => learnt.clone(),
            _ => Replicas { replicas: pool.replicas, scaled_by: pool.scaled_by.clone() },
        }
    }

    /// Decides, and writes where the number differs and is the operator's to set.
    pub(super) async fn beat(&mut self, scene: &Scene<'_>, actuator: &dyn Actuator) -> ScalingPulse {
        let Scene { pool, target, registration, signal, now } = scene;
        let is = self.replicas(pool, *registration);
        let decision = decide(&pool.policy, signal, is.replicas, &mut self.history, *now);
        if self.whole && !signal.fresh() {
            let note = format!("pool {}: {}", pool.pool, decision.message);
            let action = "Freeze".to_owned();
            tell(actuator, target, News { reason: "ScalingFrozen", action, note, warning: true }).await;
        }
        self.whole = signal.fresh();
        if decision.desired != is.replicas && !decision.advisory && is.scaled_by.is_none() {
            match actuate(actuator, target, pool, &is, &decision).await {
                Ok(learnt) => self.learnt = Some((*registration, learnt)),
                // Tried again in the next round.
                Err(error) => tracing::warn!(
                    namespace = target.namespace,
                    cause = std::error::Error::source(&error).map(ToString::to_string),
                    desired = decision.desired,
                    %error,
                    "the number of scatter workers is not set"
                ),
            }
        }
        let externally = self.replicas(pool, *registration).scaled_by;
        self.show(&decision, signal, externally)
    }

    fn show(&mut self, decision: &Decision, signal: &Signal, externally: Option<String>) -> ScalingPulse {
        let Decision { desired, raw: recommended, reason, ref message, advisory } = *decision;
        let (reason, frozen) = (reason.name(), !signal.fresh());
        let said = Said { reason, desired, recommended, frozen, advisory, externally: externally.clone() };
        let message = match self.said.take() {
            Some((before, message)) if before == said => message,
            _ if advisory || externally.is_some() => format!("would be: {message}"),
            _ => message.clone(),
        };
        self.said = Some((said, message.clone()));
        ScalingPulse {
            recommended,
            desired,
            reason,
            message,
            frozen,
            externally,
            cold_share: signal.cold_share_percent / 100.0,
            demand: signal.cold_tokens_per_second,
        }
    }
}

/// Sets the number that was decided on, if it still is what the decision was made on. Gives what it is then.
async fn actuate(
    actuator: &dyn Actuator,
    target: &Target,
    pool: &ScalingPool,
    is: &Replicas,
    decision: &Decision,
) -> Result<Replicas, ActuateError> {
    let live = in_time(target, actuator.read(target)).await?;
    if live != *is {
        // Somebody was faster: the next round decides anew.
        return Ok(live);
    }
    let (from, to) = (is.replicas, decision.desired);
    match in_time(target, actuator.set(target, to)).await? {
        Written::Taken { by } => Ok(Replicas { scaled_by: Some(by), ..live }),
        Written::Done => {
            tracing::info!(namespace = target.namespace, pool = target.object, from, to, "scaled");
            let reason = if to > from { "ScaledUp" } else { "ScaledDown" };
            let note = format!("pool {}: {}", pool.pool, decision.message);
            let action = format!("ScaleFrom{from}To{to}");
            tell(actuator, target, News { reason, action, note, warning: false }).await;
            Ok(Replicas { replicas: to, scaled_by: None })
        }
    }
}

/// An event is for people; the status says the same.
async fn tell(actuator: &dyn Actuator, target: &Target, news: News) {
    if let Err(error) = in_time(target, actuator.publish(target, &news)).await {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::warn!(%error, cause, reason = news.reason, "an event could not be written");
    }
}

async fn in_time<T>(
    target: &Target,
    call: impl Future<Output = Result<T, ActuateError>>,
) -> Result<T, ActuateError> {
    match tokio::time::timeout(CALL, call).await {
        Ok(done) => done,
        Err(_) => Err(ActuateError::Wait { object: target.object.clone() }),
    }
}
