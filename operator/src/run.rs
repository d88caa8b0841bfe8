//! From flags to a running operator: wait for the Lease, then run every controller until it is lost or the end.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use futures::FutureExt;
use hypic_wire::probes;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Client, Config};
use prometheus::Registry;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::actuate::Scaler;
use crate::args::Args;
use crate::controllers;
use crate::lease::{self, LeaseConfig, Timing};
use crate::metrics::Metrics;
use crate::plan::names::MANAGER;
use crate::pulse::{self, Pulses};
use crate::reconcile::Context;
use crate::schema;
use crate::serve::Probes;

/// Runs until `stopped`, or until another replica has taken over.
///
/// # Errors
/// No API server, definitions that are too old, a port that is taken, or the Lease lost.
pub async fn run(args: Args, stopped: impl Future<Output = ()> + Send + 'static) -> Result<()> {
    let config = Config::infer().await.context("find the API server")?;
    let client = Client::try_from(config).context("connect to the API server")?;
    schema::check(&client).await?;

    let metrics = Arc::new(Metrics::new(Registry::new()).context("register the metrics")?);
    let listener = args.listen.listen().await.with_context(|| format!("listen on {}", args.listen))?;
    tokio::spawn(probes::serve(listener, Arc::new(Probes { metrics: Arc::clone(&metrics) })));

    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        stopped.await;
        stopping.cancel();
    });
    let lease = LeaseConfig {
        namespace: args.namespace.clone(),
        name: args.lease_name.clone(),
        identity: args.identity.clone(),
        timing: Timing::default(),
    };
    tracing::info!(lease = args.lease_name, identity = args.identity, "waiting for the lease");
    let leadership = tokio::select! {
        leadership = lease::acquire(client.clone(), lease) => leadership,
        () = stop.cancelled() => return Ok(()),
    };
    metrics.leads(true);
    tracing::info!(token = leadership.token(), "leading");

    let work = lead(&args, client, Arc::clone(&metrics), stop.clone());
    tokio::pin!(work);
    tokio::select! {
        () = &mut work => {}
        lost = leadership.lost() => {
            // Whoever leads now must not be raced: end at once, and start anew as a follower.
            bail!("the lease is lost: {lost}");
        }
    }
    leadership.release().await.context("release the lease")?;
    Ok(())
}

async fn lead(args: &Args, client: Client, metrics: Arc<Metrics>, stop: CancellationToken) {
    let reporter = Reporter { controller: MANAGER.into(), instance: Some(args.identity.clone()) };
    let recorder = Recorder::new(client.clone(), reporter);
    let pulses = Pulses::default();
    let context = Arc::new(Context {
        client: client.clone(),
        defaults: args.defaults(),
        pulses: pulses.clone(),
        recorder: recorder.clone(),
        metrics: Arc::clone(&metrics),
        identities: Default::default(),
        spread: Default::default(),
        patience: Default::default(),
    });
    let namespaces: Vec<Option<String>> = match args.watch_namespaces.as_slice() {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let mut senders = Vec::new();
    let mut running = Vec::new();
    for namespace in namespaces {
        let (sender, receiver) = mpsc::channel(256);
        senders.push((namespace.clone(), sender));
        let stop = stop.clone();
        let stopped = async move { stop.cancelled().await }.boxed().shared();
        let changed = ReceiverStream::new(receiver);
        running.push(controllers::run(Arc::clone(&context), namespace, args.concurrency, changed, stopped));
    }
    let (changed, mut told) = mpsc::channel::<pulse::ClusterKey>(256);
    let actuator = Arc::new(Scaler { client, recorder });
    let beating = pulse::run(pulses, actuator, metrics, args.signal(), changed);
    let routing = async {
        while let Some(key) = told.recv().await {
            let to = senders
                .iter()
                .find(|(namespace, _)| namespace.as_ref().is_none_or(|within| *within == key.namespace));
            if let Some((_, sender)) = to {
                // Its controller has ended with the others.
                let _ended = sender.send(key).await;
            }
        }
    };
    tokio::select! {
        _ = futures::future::join_all(running) => {}
        () = beating => {}
        () = routing => {}
    }
}
