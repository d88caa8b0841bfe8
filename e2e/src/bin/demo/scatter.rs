//! New documents until a scatter worker comes, none until it has gone again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hypic_e2e::client::Client;
use hypic_e2e::pass::MAX_TOKENS;
use hypic_e2e::questions::Question;
use hypic_e2e::report::Scatter;
use rand::rngs::StdRng;

use crate::watch::{Pool, Watch};

/// A minute of counters, a start and a model to load.
const COMES: Duration = Duration::from_secs(180);
/// A minute until the counters have forgotten the traffic, the windows of the sample, and a drain.
const GOES: Duration = Duration::from_secs(240);
/// Requests go on for this long once a worker is ready, so that it has something to do.
const BUSY: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_secs(1);

/// Shows it.
///
/// # Errors
/// A request that fails, or a worker that does not come or go.
pub(crate) fn show(client: &Client, question: &Question, step: &dyn Fn(&str)) -> Result<Scatter> {
    let mut watch = Watch::begin(step)?;
    step("waiting until no scatter worker is left of the questions");
    let start =
        until(&mut watch, GOES, "the pool has no workers", |pool| pool.asked == 0 && pool.ready == 0)?.ready;

    step("new documents with every request, until a scatter worker has been added");
    let stop = AtomicBool::new(false);
    let (asked, peak) = thread::scope(|scope| {
        let traffic = scope.spawn(|| ask_until(&stop, client, question));
        let peak = grow(&mut watch, &stop);
        stop.store(true, Ordering::Relaxed);
        let asked = traffic.join().map_err(|_| anyhow!("the thread that asks has ended by itself"));
        (asked, peak)
    });
    // A failed request is why no worker came, if both are so.
    let asked = asked??;
    let mut peak = peak?;
    step(&format!("{asked} requests were answered; no more of them, until the workers have been removed"));
    let mut gone = |pool: &Pool| {
        peak = peak.max(pool.ready);
        pool.asked == 0 && pool.ready == 0
    };
    let end = until(&mut watch, GOES, "the pool has no workers again", &mut gone)?.ready;
    Ok(Scatter { start, peak, end })
}

/// Watches until a worker has been ready for a while; gives the most that were.
fn grow(watch: &mut Watch<'_>, stop: &AtomicBool) -> Result<u64> {
    let mut peak = 0;
    let mut first: Option<Instant> = None;
    until(watch, COMES, "a scatter worker is ready", |pool| {
        peak = peak.max(pool.ready);
        if pool.ready > 0 {
            first.get_or_insert_with(Instant::now);
        }
        first.is_some_and(|first| first.elapsed() > BUSY) || stop.load(Ordering::Relaxed)
    })?;
    Ok(peak)
}

fn until(
    watch: &mut Watch<'_>,
    limit: Duration,
    what: &str,
    mut done: impl FnMut(&Pool) -> bool,
) -> Result<Pool> {
    let start = Instant::now();
    loop {
        let pool = watch.pool()?;
        if done(&pool) {
            return Ok(pool);
        }
        if start.elapsed() > limit {
            bail!("{what}: not within {} s; last seen: {pool:?}", limit.as_secs());
        }
        sleep(PAUSE);
    }
}

/// Asks over new documents until `stop`; gives the number of answers. A failure stops the watching too.
fn ask_until(stop: &AtomicBool, client: &Client, question: &Question) -> Result<u64> {
    let mut random: StdRng = rand::make_rng();
    let mut asked = 0;
    while !stop.load(Ordering::Relaxed) {
        let result = client.ask(&question.over_new_documents(&mut random), MAX_TOKENS, false);
        if let Err(error) = result {
            stop.store(true, Ordering::Relaxed);
            return Err(error).with_context(|| format!("request {} of new documents", asked + 1));
        }
        asked += 1;
    }
    Ok(asked)
}
