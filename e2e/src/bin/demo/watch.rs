//! The scatter pool and its events, with a line for whatever is new.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::kubectl::get;
use crate::sample::POOL;

/// The pool as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Workers asked for.
    pub(crate) asked: u64,
    /// Workers that are ready.
    pub(crate) ready: u64,
    reason: String,
    message: String,
}

/// Looks at the pool and tells what has changed.
pub(crate) struct Watch<'a> {
    step: &'a dyn Fn(&str),
    told: Pool,
    events: BTreeSet<String>,
}

impl<'a> Watch<'a> {
    /// Begins; what has happened so far is not told again.
    pub(crate) fn begin(step: &'a dyn Fn(&str)) -> Result<Self> {
        let (_, events) = look()?;
        let events = events.into_iter().map(|(key, _)| key).collect();
        Ok(Self { step, told: Pool::default(), events })
    }

    /// Looks again.
    pub(crate) fn pool(&mut self) -> Result<Pool> {
        let (pool, events) = look()?;
        for (key, line) in events {
            if self.events.insert(key) {
                (self.step)(&format!("  event   {line}"));
            }
        }
        if pool != self.told {
            let Pool { asked, ready, reason, message } = &pool;
            (self.step)(&format!("  status  {ready} ready of {asked} workers, {reason}: {message}"));
            self.told = pool.clone();
        }
        Ok(pool)
    }
}

/// The pool, and its events by a key that changes when one of them is counted up.
fn look() -> Result<(Pool, Vec<(String, String)>)> {
    let list = get("hypicscatterpools.hypic.dev,events.events.k8s.io")?;
    let items = list["items"].as_array().context("kubectl printed no list")?;
    let pool =
        items.iter().find(|item| item["kind"] == "HypicScatterPool" && item["metadata"]["name"] == POOL);
    let events = items
        .iter()
        .filter(|item| item["regarding"]["kind"] == "HypicScatterPool" && item["regarding"]["name"] == POOL);
    let pool = pool.with_context(|| format!("the HypicScatterPool {POOL} is not there"))?;
    Ok((read(pool), events.map(event).collect()))
}

fn read(pool: &Value) -> Pool {
    let text = |name: &str| pool["status"][name].as_str().unwrap_or_default().to_owned();
    Pool {
        asked: pool["spec"]["replicas"].as_u64().unwrap_or_default(),
        ready: pool["status"]["readyReplicas"].as_u64().unwrap_or_default(),
        reason: text("reason"),
        message: text("message"),
    }
}

fn event(event: &Value) -> (String, String) {
    let key = format!("{} {}", event["metadata"]["uid"], event["series"]["count"]);
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    (key, format!("{} {}", text("reason"), text("note")))
}
