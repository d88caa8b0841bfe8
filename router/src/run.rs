//! From a checked configuration to a running router, and back down again.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hypic_domain::topology::TopologySource;
use hypic_segment::{Clock, Segmenter};
use hypic_wire::channel::Channels;
use prometheus::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::admission::{Admission, CpuWork};
use crate::args::Config;
use crate::error::RouterError;
use crate::fleet_view::{FleetView, poll};
use crate::front::Front;
use crate::grpc::FleetService;
use crate::http;
use crate::metrics::Metrics;
use crate::{listen, tenant};

/// An agent that takes longer than this to tell its load counts as lost.
const DESCRIBE: Duration = Duration::from_secs(2);
/// How often files of keys and certificates are looked at.
const LOOK: Duration = Duration::from_secs(5);
/// For error events to reach their clients after the drain's end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves until `shutdown`; then says at once that it is not ready, after a while takes no more connections, and
/// lets running answers finish.
///
/// # Errors
/// A file of the model, a listener, or a server that stops by itself.
pub async fn run(
    config: Config,
    registry: Registry,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), RouterError> {
    let clock: Clock = Arc::new(SystemTime::now);
    let path = config.model.path.clone();
    let segmenter = Segmenter::load(&path, &config.model, &clock)
        .map_err(|source| RouterError::LoadModel { path, source })?;
    let metrics = Arc::new(Metrics::new(registry).map_err(RouterError::RegisterMetrics)?);
    let fleet = Arc::new(FleetView::new(config.topology));
    let channels = Arc::new(Channels::new(config.security.clone()));
    let stop = CancellationToken::new();

    let listener = config.listen.listen().await.map_err(RouterError::Connect)?;
    let control = config.control_listen.listen().await.map_err(RouterError::Connect)?;
    tracing::info!(listen = %config.listen, control = %config.control_listen, "serving");

    let mut tasks = JoinSet::new();
    let admission = Admission::new(config.limits);
    let service = FleetService::new(fleet.clone(), admission.clone(), metrics.clone());
    let routes = Routes::new(hypic_wire::serve::fleet(service));
    let security = config.security.clone();
    tasks.spawn(hypic_wire::serve::serve(control, config.security, routes, stop.clone().cancelled_owned()));
    tasks.spawn(done(poll::run(fleet.clone(), channels.clone(), metrics.clone(), config.poll, DESCRIBE)));
    tasks.spawn(done(async move { security.follow_files(LOOK).await }));
    let mounted = fleet.clone();
    tasks.spawn(done(config.topology_file.follow(move |topology| {
        let ((epoch, revision), accepted) = mounted.adopt(topology, TopologySource::File);
        tracing::info!(%epoch, revision, accepted, "the topology file has changed");
    })));

    let front = Arc::new(Front {
        model: config.model,
        segmenter: Arc::new(segmenter),
        fleet,
        channels,
        admission,
        cpu: CpuWork::new(config.cpu_threads),
        tenants: config.tenants,
        secret: config.secret,
        metrics,
        bounds: config.bounds,
        leaving: CancellationToken::new(),
        stop: stop.clone(),
    });
    let following = front.clone();
    tasks.spawn(done(async move { tenant::follow(&following.tenants, &following.metrics, LOOK).await }));
    let routes = http::routes(front.clone(), config.origins);
    let draining = {
        let stop = stop.clone();
        async move {
            shutdown.await;
            front.leaving.cancel();
            tracing::info!(seconds = config.withdraw.as_secs(), "not ready any more");
            tokio::time::sleep(config.withdraw).await;
            tracing::info!(seconds = config.drain.as_secs(), "draining");
            tokio::spawn(async move {
                tokio::time::sleep(config.drain).await;
                stop.cancel();
            });
        }
    };
    tokio::select! {
        () = listen::serve(listener, routes, config.connections, draining) => Ok(()),
        failed = failure(&mut tasks) => Err(failed),
        () = async { stop.cancelled().await; tokio::time::sleep(LAST_WORDS).await } => Ok(()),
    }
}

async fn done(work: impl Future<Output = ()>) -> Result<(), hypic_wire::Error> {
    work.await;
    Ok(())
}

/// The failure of a task that should run for ever.
async fn failure(tasks: &mut JoinSet<Result<(), hypic_wire::Error>>) -> RouterError {
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(source)) => return RouterError::Connect(source),
            Err(source) => return RouterError::RunTask(source),
        }
    }
    std::future::pending().await
}
