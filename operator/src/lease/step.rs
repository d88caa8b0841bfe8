//! Whether to take the lease, from what was seen of it.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// What the API server has. The time is compared for equality only: whose clock made it is not known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    /// Empty without one.
    pub(super) holder: String,
    pub(super) token: u64,
    pub(super) duration: Duration,
    pub(super) renewed: Option<MicroTime>,
}

impl Record {
    pub(super) fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        Self {
            holder: spec.holder_identity.clone().unwrap_or_default(),
            token: Self::token(&spec),
            duration: Duration::from_secs(
                spec.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok()).unwrap_or_default(),
            ),
            renewed: spec.renew_time,
        }
    }

    pub(super) fn token(spec: &LeaseSpec) -> u64 {
        spec.lease_transitions.and_then(|count| count.try_into().ok()).unwrap_or_default()
    }
}

/// A record, and since when it has been as it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    record: Record,
    since: Instant,
}

impl Seen {
    /// What is known after another look.
    pub(super) fn again(before: Option<Self>, record: Record, now: Instant) -> Self {
        before.filter(|before| before.record == record).unwrap_or(Self { record, since: now })
    }
}

/// What a candidate does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// There is no lease yet.
    Create,
    /// Nobody has it; it will have this token.
    Take { token: u64 },
    /// Somebody has it.
    Wait,
}

pub(super) fn step(seen: Option<&Seen>, now: Instant) -> Action {
    let Some(Seen { record, since }) = seen else { return Action::Create };
    let free = record.holder.is_empty() || now.duration_since(*since) >= record.duration;
    if free { Action::Take { token: record.token + 1 } } else { Action::Wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn record(holder: &str, token: u64, renewed: i64) -> Record {
        let renewed = k8s_openapi::jiff::Timestamp::from_second(renewed).unwrap();
        Record { holder: holder.to_owned(), token, duration: 15 * SECOND, renewed: Some(MicroTime(renewed)) }
    }

    /// Looks at records at the given seconds and says what to do after the last one.
    fn after(looks: &[(u32, Record)]) -> Action {
        let start = Instant::now();
        let mut seen = None;
        let mut now = start;
        for (at, record) in looks {
            now = start + *at * SECOND;
            seen = Some(Seen::again(seen, record.clone(), now));
        }
        step(seen.as_ref(), now)
    }

    #[test]
    fn only_a_record_that_stands_still_for_the_whole_duration_is_free() {
        let other = |renewed| record("other", 4, renewed);
        let table = [
            ("a first look tells nothing of time", vec![(0, other(-1_000_000))], Action::Wait),
            ("almost", vec![(0, other(0)), (14, other(0))], Action::Wait),
            ("still", vec![(0, other(0)), (7, other(0)), (15, other(0))], Action::Take { token: 5 }),
            ("renewed in between", vec![(0, other(0)), (7, other(5)), (21, other(5))], Action::Wait),
            (
                "a clock that runs backwards renews too",
                vec![(0, other(9)), (14, other(2)), (28, other(2))],
                Action::Wait,
            ),
            (
                "another holder",
                vec![(0, other(0)), (14, record("third", 5, 0)), (16, record("third", 5, 0))],
                Action::Wait,
            ),
            ("given back", vec![(0, other(0)), (1, record("", 4, 0))], Action::Take { token: 5 }),
        ];
        for (what, looks, action) in table {
            assert_eq!(after(&looks), action, "{what}");
        }
        assert_eq!(step(None, Instant::now()), Action::Create);
    }

    #[test]
    fn a_lease_without_a_record_is_free() {
        let seen = Seen::again(None, Record::of(&Lease::default()), Instant::now());
        assert_eq!(step(Some(&seen), Instant::now()), Action::Take { token: 1 });
    }
}
