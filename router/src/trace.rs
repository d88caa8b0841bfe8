//! Spans: to the log, and by flag to an OTLP collector. `traceparent` comes in over HTTP and goes out over
//! gRPC whether or not spans are exported.

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tonic::metadata::{MetadataKey, MetadataMap};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::error::RouterError;

/// Sends what is left of the spans when dropped.
pub struct Tracing {
    provider: SdkTracerProvider,
}

/// Sets up logs to standard error and, with an `endpoint`, traces to a collector.
///
/// # Errors
/// An endpoint that is no address.
pub fn start(filter: EnvFilter, endpoint: Option<&str>) -> Result<Tracing, RouterError> {
    let resource = Resource::builder().with_service_name("hypic-router").build();
    let mut provider = SdkTracerProvider::builder().with_resource(resource);
    if let Some(endpoint) = endpoint {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .build()
            .map_err(|source| RouterError::ExportTraces { endpoint: endpoint.to_owned(), source })?;
        provider = provider.with_batch_exporter(exporter);
    }
    let provider = provider.build();
    let started = tracing_subscriber::registry()
        .with(filter)
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr))
        .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("hypic-router")))
        .try_init();
    if started.is_err() {
        // Whoever embeds the router has a subscriber of its own; that one stays.
        tracing::debug!("tracing was set up already");
    }
    Ok(Tracing { provider })
}

impl Drop for Tracing {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::debug!(%error, "cannot send the last spans");
        }
    }
}

/// Makes `span` a child of the span named in a request's headers.
pub(crate) fn adopt(span: &tracing::Span, headers: &HeaderMap) {
    let context = TraceContextPropagator::new().extract(&Headers(headers));
    // Fails only where no exporter layer is installed; then there is nothing to relate.
    drop(span.set_parent(context));
}

/// Writes the current span into the metadata of a call.
pub(crate) fn inject(metadata: &mut MetadataMap) {
    let context = tracing::Span::current().context();
    TraceContextPropagator::new().inject_context(&context, &mut Metadata(metadata));
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}

struct Metadata<'a>(&'a mut MetadataMap);

impl Injector for Metadata<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(key), Ok(value)) = (MetadataKey::from_bytes(key.as_bytes()), value.parse()) {
            self.0.insert(key, value);
        }
    }
}
