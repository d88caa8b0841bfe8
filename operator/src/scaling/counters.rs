//! What one router has counted since it began, and the difference of two readings.

use hypic_domain::id::{AgentId, Incarnation};
use hypic_domain::topology::AgentRole;

/// One reading of a router's counters. Counts grow for the life of the process.
#[derive(Clone, Debug, PartialEq)]
pub struct Counters {
    /// Which life of the process.
    pub incarnation: Incarnation,
    /// Seconds since it began.
    pub uptime_seconds: f64,
    /// Placed requests with segments.
    pub requests: u64,
    /// Of them, those with a cold segment.
    pub cold_requests: u64,
    /// Tokens of the segments of all of them.
    pub segment_tokens: u64,
    /// Of those, tokens of cold segments.
    pub cold_tokens: u64,
    /// First-token times of cold requests: bucket `i` counts those up to `2^i` ms and over the bucket before;
    /// the last is open.
    pub cold_first_token_ms_counts: Vec<u64>,
    /// Age of the oldest request that waits for admission, 0 without one.
    pub queue_age_seconds: f64,
    /// The agents as this router last polled them.
    pub workers: Vec<Worker>,
}

/// One agent as a router sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// The agent.
    pub id: AgentId,
    /// What it is for.
    pub role: AgentRole,
    /// It answers, is ready and takes work.
    pub usable: bool,
    /// Its calibrated speed; 0 where it is not known.
    pub build_tokens_per_second: f64,
    /// Builds that run or wait on it.
    pub builds: u32,
}

/// What was counted in some span of time. Fractions come from spans that lie partly in the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) cold_requests: f64,
    pub(super) segment_tokens: f64,
    pub(super) cold_tokens: f64,
    pub(super) first_token: Vec<f64>,
}

impl Counts {
    /// Adds a part of `other`.
    pub(super) fn add(&mut self, other: &Self, part: f64) {
        self.cold_requests += part * other.cold_requests;
        self.segment_tokens += part * other.segment_tokens;
        self.cold_tokens += part * other.cold_tokens;
        if self.first_token.len() < other.first_token.len() {
            self.first_token.resize(other.first_token.len(), 0.0);
        }
        for (own, theirs) in self.first_token.iter_mut().zip(&other.first_token) {
            *own += part * theirs;
        }
    }
}

impl Counters {
    /// Everything counted since the process began.
    pub(super) fn all(&self) -> Counts {
        Counts {
            cold_requests: self.cold_requests as f64,
            segment_tokens: self.segment_tokens as f64,
            cold_tokens: self.cold_tokens as f64,
            first_token: self.cold_first_token_ms_counts.iter().map(|&count| count as f64).collect(),
        }
    }

    /// What was counted since `before`, a reading of the same life. None if a count fell: then the two do
    /// not belong together, whatever the incarnation says.
    pub(super) fn since(&self, before: &Self) -> Option<Counts> {
        let less = |now: u64, then: u64| now.checked_sub(then).map(|count| count as f64);
        if self.cold_first_token_ms_counts.len() < before.cold_first_token_ms_counts.len() {
            return None;
        }
        let earlier = before.cold_first_token_ms_counts.iter().copied().chain(std::iter::repeat(0));
        Some(Counts {
            cold_requests: less(self.cold_requests, before.cold_requests)?,
            segment_tokens: less(self.segment_tokens, before.segment_tokens)?,
            cold_tokens: less(self.cold_tokens, before.cold_tokens)?,
            first_token: self
                .cold_first_token_ms_counts
                .iter()
                .zip(earlier)
                .map(|(&now, then)| less(now, then))
                .collect::<Option<_>>()?,
        })
    }
}

/// The time in ms that 95 of 100 first tokens did not exceed, linear inside its bucket. In the open bucket
/// it is that bucket's lower bound: all that is known. None without requests or without a bound.
pub(super) fn p95_ms(counts: &[f64]) -> Option<f64> {
    let total: f64 = counts.iter().sum();
    if counts.len() < 2 || total <= 0.0 {
        return None;
    }
    let rank = 0.95 * total;
    let mut below = 0.0;
    for (bucket, &count) in counts.iter().enumerate() {
        let upper = 2f64.powi(i32::try_from(bucket).unwrap_or(i32::MAX));
        let lower = if bucket == 0 { 0.0 } else { upper / 2.0 };
        let last = bucket + 1 == counts.len();
        if last || below + count >= rank {
            return Some(if last { lower } else { lower + (upper - lower) * (rank - below) / count });
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_95th_percentile_is_linear_inside_its_bucket() {
        // 100 requests between 512 and 1024 ms.
        let mut counts = vec![0.0; 12];
        counts[10] = 100.0;
        assert_eq!(p95_ms(&counts), Some(512.0 + 0.95 * 512.0));
        // 90 under 8 ms, 10 between 512 and 1024: the 95th lies in the middle of the latter.
        counts[3] = 90.0;
        counts[10] = 10.0;
        assert_eq!(p95_ms(&counts), Some(768.0));
    }

    #[test]
    fn the_open_bucket_gives_its_lower_bound() {
        assert_eq!(p95_ms(&[0.0, 0.0, 0.0, 5.0]), Some(4.0));
    }

    #[test]
    fn without_requests_or_bounds_there_is_no_percentile() {
        assert_eq!(p95_ms(&[]), None);
        assert_eq!(p95_ms(&[3.0]), None);
        assert_eq!(p95_ms(&[0.0, 0.0]), None);
    }
}
