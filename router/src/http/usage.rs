//! What an answer cost: OpenAI's `usage`, our `hypic` block beside it, and the header `server-timing`.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use hypic_domain::flow::SegmentOutcome;
use hypic_domain::unit::Millis;
use serde_json::{Map, Value, json};

use crate::front::Account;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// `usage`.
pub(super) fn usage(account: &Account) -> Value {
    json!({
        "prompt_tokens": account.prompt_tokens,
        "completion_tokens": account.answer_tokens,
        "total_tokens": u64::from(account.prompt_tokens) + u64::from(account.answer_tokens),
        "prompt_tokens_details": {"cached_tokens": account.ready.counts.cached()},
    })
}

/// `hypic`: how the prompt's tokens and segments were had, and where the time went.
pub(super) fn hypic(account: &Account) -> Value {
    let ready = &account.ready;
    let (mut hit, mut fetched, mut cold) = (0, 0, Vec::new());
    for report in &ready.segments {
        match report.outcome {
            SegmentOutcome::Hit { .. } => hit += 1,
            SegmentOutcome::Fetched => fetched += 1,
            SegmentOutcome::Built { cold: reason } => {
                cold.push(json!({"piece": report.piece, "reason": reason.name()}));
            }
        }
    }
    let mut timing = Map::new();
    for (station, millis) in &account.stations {
        let before = timing.get(station).and_then(Value::as_f64).unwrap_or(0.0);
        timing.insert(station.clone(), json!(before + millis.0));
    }
    json!({
        "mode": account.mode.name(),
        "counts": ready.counts,
        "segments": {
            "total": ready.segments.len(), "hit": hit, "fetched": fetched, "built": cold.len(),
        },
        "cold": cold,
        "gap": ready.gap,
        "timing_ms": timing,
    })
}

/// Says on the response how long each station took.
pub(super) fn server_timing(response: &mut Response, stations: &[(String, Millis)]) {
    let entries: Vec<String> = stations
        .iter()
        .map(|(name, millis)| {
            let token = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
            format!("{};dur={:.3}", name.chars().map(token).collect::<String>(), millis.0)
        })
        .collect();
    if let Ok(value) = HeaderValue::try_from(entries.join(", ")) {
        response.headers_mut().insert(SERVER_TIMING, value);
    }
}
