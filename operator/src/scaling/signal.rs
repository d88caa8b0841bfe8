//! What is known of a fleet at one time.

use std::time::Duration;

/// Whether everything that should be known is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// All routers answered, or have been silent for less than the grace.
    Fresh,
    /// The counters have been read for too short a time to speak of rates.
    Starting,
    /// A router that should answer has not for longer than the grace; its part is missing.
    Stale {
        /// Pod uid of the router; the first of several.
        router: String,
    },
    /// No router is there to ask.
    NoRouters,
}

/// One signal for the whole fleet, from all its routers.
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    /// When it was taken.
    pub taken_at: Duration,
    /// Whether it is whole.
    pub freshness: Freshness,
    /// Seconds that the rates cover.
    pub window_seconds: f64,
    /// Tokens of segments, per second.
    pub segment_tokens_per_second: f64,
    /// Tokens of cold segments, per second: the demand.
    pub cold_tokens_per_second: f64,
    /// Requests with a cold segment, per second.
    pub cold_requests_per_second: f64,
    /// Cold tokens in 100 segment tokens; 0 without traffic.
    pub cold_share_percent: f64,
    /// The others; 0 without traffic.
    pub hit_share_percent: f64,
    /// 95th percentile of the first-token time of cold requests in the window; none without any.
    pub cold_p95_ms: Option<f64>,
    /// Age of the oldest request that waits for admission at any router.
    pub queue_age_seconds: f64,
    /// What one worker builds: as usable scatter workers (else combine agents) say, the median, or what is seen
    /// of busy workers where that is less; none where no speed is known.
    pub tokens_per_second_per_worker: Option<f64>,
    /// Scatter workers that take work.
    pub usable_workers: i32,
}

/// A signal older than this is not one of now: whoever takes signals hangs.
const TOO_OLD: Duration = Duration::from_secs(30);

impl Signal {
    /// Nothing is missing.
    pub fn fresh(&self) -> bool {
        self.freshness == Freshness::Fresh
    }

    /// What is missing for a decision at `now`, as words for a message.
    pub(super) fn missing(&self, now: Duration) -> Option<String> {
        if now.saturating_sub(self.taken_at) > TOO_OLD {
            return Some("no counters were read for over 30 s".into());
        }
        match &self.freshness {
            Freshness::Fresh => None,
            Freshness::Starting => Some("counters have only just begun to be read".into()),
            Freshness::Stale { router } => Some(format!("router {router} does not answer")),
            Freshness::NoRouters => Some("no router is there to ask".into()),
        }
    }

    /// Tokens of the mean cold request.
    pub(super) fn tokens_per_cold_request(&self) -> f64 {
        if self.cold_requests_per_second > 0.0 {
            self.cold_tokens_per_second / self.cold_requests_per_second
        } else {
            0.0
        }
    }
}
