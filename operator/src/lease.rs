//! Leader election on a `coordination.k8s.io/v1` Lease.
//!
//! Invariants: a lease is taken over only when its record has not changed for a whole lease duration *by this
//! process's monotonic clock*; times in the record are written for people and never compared. Every write carries
//! the resource version that it was decided on, so of two candidates one fails. A leader that could not renew for
//! [`Timing::deadline`], which is shorter than the duration, has lost before anybody else may take over.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use step::{Action, Record, Seen, step};

mod step;

/// Which lease, and who wants it.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// Namespace of the lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// This process: differs from every other replica's.
    pub identity: String,
    /// How long things take.
    pub timing: Timing,
}

/// The times of an election.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A record that has not changed for so long has no leader any more; whole seconds.
    pub duration: Duration,
    /// The leader writes this often.
    pub renew: Duration,
    /// A leader that could not write for so long has lost. Shorter than `duration`.
    pub deadline: Duration,
    /// Candidates look, and a leader whose write failed tries again, this often.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew: Duration::from_secs(5),
            deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// Why a leader is none any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Somebody else has the lease.
    #[error("'{holder}' has taken the lease")]
    Taken {
        /// Who; empty when the lease has no holder or is gone.
        holder: String,
    },
    /// The API server took no renewal in time.
    #[error("the lease could not be renewed in time")]
    Late,
}

/// The lease is held. Dropping it stops the renewals without giving the lease back: others wait until it runs out.
pub struct Leadership {
    held: Held,
    token: u64,
    lost: watch::Receiver<Option<Lost>>,
    renewing: JoinSet<()>,
}

impl Leadership {
    /// Grows with every change of leader: of two that think they lead, the one with the larger token does.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Waits until the lease is lost. From then on nothing may be written any more.
    pub async fn lost(&self) -> Lost {
        let mut lost = self.lost.clone();
        match lost.wait_for(Option::is_some).await {
            Ok(lost) => lost.clone().unwrap_or(Lost::Late),
            // The task that renews is gone, and so are renewals.
            Err(_) => Lost::Late,
        }
    }

    /// Gives the lease back, so that another replica leads at once. Call it when all work is done.
    ///
    /// # Errors
    /// The API server does not take it: the lease runs out by itself.
    pub async fn release(mut self) -> Result<(), Error> {
        self.renewing.shutdown().await;
        if self.lost.borrow().is_some() {
            return Ok(());
        }
        // Anew: a renewal that was cut short may have arrived.
        let Some(lease) = self.held.api.get_opt(&self.held.config.name).await? else { return Ok(()) };
        if Record::of(&lease).holder != self.held.config.identity {
            return Ok(());
        }
        self.held.write(lease, String::new(), self.token).await.map(drop)
    }
}

/// Waits until this process leads.
///
/// An API server that fails is asked again for ever: only the caller knows when to give up.
pub async fn acquire(client: Client, config: LeaseConfig) -> Leadership {
    let held = Held { api: Api::namespaced(client, &config.namespace), config };
    let mut seen = None;
    loop {
        match timeout(held.config.timing.deadline, held.attempt(&mut seen)).await {
            Ok(Ok(Some((lease, since)))) => return held.lead(lease, since),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::warn!(
                lease = held.config.name,
                error = &error as &dyn std::error::Error,
                "the lease cannot be looked at or taken"
            ),
            Err(_) => tracing::warn!(lease = held.config.name, "the API server does not answer"),
        }
        sleep(held.config.timing.retry).await;
    }
}

#[derive(Clone)]
struct Held {
    api: Api<Lease>,
    config: LeaseConfig,
}

impl Held {
    /// Looks once, and takes the lease if nobody has it. Returns what was written and when that began.
    async fn attempt(&self, seen: &mut Option<Seen>) -> Result<Option<(Lease, Instant)>, Error> {
        let found = self.api.get_opt(&self.config.name).await?;
        let now = Instant::now();
        *seen = found.as_ref().map(|lease| Seen::again(seen.take(), Record::of(lease), now.into_std()));
        let me = &self.config.identity;
        let taken = match (step(seen.as_ref(), now.into_std()), found) {
            (Action::Wait, _) => return Ok(None),
            (Action::Take { token }, Some(lease)) => self.write(lease, me.clone(), token).await,
            (_, None) => self.api.create(&PostParams::default(), &self.first()).await,
            (Action::Create, Some(_)) => return Ok(None),
        };
        match taken {
            Ok(lease) => Ok(Some((lease, now))),
            // Somebody else was faster.
            Err(error) if conflicts(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// From now on the lease is renewed.
    fn lead(self, lease: Lease, since: Instant) -> Leadership {
        let token = Record::of(&lease).token;
        let (tell, lost) = watch::channel(None);
        let mut renewing = JoinSet::new();
        let held = self.clone();
        renewing.spawn(async move {
            let why = held.renew(lease, since).await;
            tell.send_replace(Some(why));
        });
        Leadership { held: self, token, lost, renewing }
    }

    /// Renews until the lease is lost.
    async fn renew(&self, mut lease: Lease, mut since: Instant) -> Lost {
        let Timing { renew, deadline, retry, .. } = self.config.timing;
        // Two attempts fit in, the first of which may hang.
        let patience = deadline.saturating_sub(renew) / 2;
        let mut pause = renew;
        loop {
            sleep(pause).await;
            let begun = Instant::now();
            match timeout_at((since + deadline).min(begun + patience), self.once(&lease)).await {
                Ok(Ok(Renewal::Done(renewed))) => (lease, since, pause) = (*renewed, begun, renew),
                // With the version that the server has, at once.
                Ok(Ok(Renewal::Behind(current))) => (lease, pause) = (*current, Duration::ZERO),
                Ok(Ok(Renewal::Lost(lost))) => return lost,
                Ok(Err(error)) => {
                    tracing::warn!(
                        lease = self.config.name,
                        error = &error as &dyn std::error::Error,
                        "the lease could not be renewed"
                    );
                    pause = retry;
                }
                Err(_) => pause = Duration::ZERO,
            }
            if Instant::now() >= since + deadline {
                return Lost::Late;
            }
        }
    }

    async fn once(&self, lease: &Lease) -> Result<Renewal, Error> {
        let Record { holder, token, .. } = Record::of(lease);
        match self.write(lease.clone(), holder, token).await {
            Ok(renewed) => return Ok(Renewal::Done(Box::new(renewed))),
            Err(error) if conflicts(&error) || missing(&error) => {}
            Err(error) => return Err(error),
        }
        // Either somebody took the lease, or an earlier write arrived whose answer did not.
        let current = self.api.get_opt(&self.config.name).await?;
        let ours = |current: &Lease| {
            let now = Record::of(current);
            now.holder == self.config.identity && now.token == token
        };
        Ok(match current {
            Some(current) if ours(&current) => Renewal::Behind(Box::new(current)),
            Some(current) => Renewal::Lost(Lost::Taken { holder: Record::of(&current).holder }),
            None => Renewal::Lost(Lost::Taken { holder: String::new() }),
        })
    }

    /// Writes the lease for `holder`, if the server still has the version that `lease` has.
    async fn write(&self, mut lease: Lease, holder: String, token: u64) -> Result<Lease, Error> {
        let now = MicroTime(Timestamp::now());
        let former = lease.spec.take().unwrap_or_default();
        let kept = former.holder_identity.as_ref() == Some(&holder) && Record::token(&former) == token;
        let acquire_time = if kept { former.acquire_time.clone() } else { Some(now.clone()) };
        lease.spec = Some(LeaseSpec { acquire_time, ..self.spec(holder, token, now) });
        // Managed fields of an answer may not be sent back.
        lease.metadata.managed_fields = None;
        self.api.replace(&self.config.name, &PostParams::default(), &lease).await
    }

    fn first(&self) -> Lease {
        let Self { config: LeaseConfig { namespace, name, identity, .. }, .. } = self;
        Lease {
            metadata: ObjectMeta {
                namespace: Some(namespace.clone()),
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(self.spec(identity.clone(), 0, MicroTime(Timestamp::now()))),
        }
    }

    fn spec(&self, holder: String, token: u64, now: MicroTime) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder),
            lease_duration_seconds: Some(
                self.config.timing.duration.as_secs().try_into().unwrap_or(i32::MAX),
            ),
            lease_transitions: Some(token.try_into().unwrap_or(i32::MAX)),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }
    }
}

enum Renewal {
    Done(Box<Lease>),
    Behind(Box<Lease>),
    Lost(Lost),
}

fn conflicts(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 409)
}

fn missing(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests;
