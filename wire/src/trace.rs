//! Spans of all processes: to the log, and by flag to an OTLP collector. `traceparent` comes in over HTTP and
//! crosses gRPC whether or not spans are exported.

use hyper::HeaderMap;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::io::IsTerminal;
use tonic::metadata::{MetadataKey, MetadataMap};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Why tracing did not start.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A filter that does not parse.
    #[error("log filter '{filter}' does not parse")]
    ParseFilter {
        /// The filter.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// An endpoint that is none.
    #[error("cannot export traces to '{endpoint}'")]
    Export {
        /// The endpoint.
        endpoint: String,
        /// What is wrong with it.
        source: opentelemetry_otlp::ExporterBuildError,
    },
}

/// Sends what is left of the spans when dropped.
pub struct Tracing {
    provider: SdkTracerProvider,
}

/// Sets up logs of `service` to standard error and, with an `endpoint`, traces to a collector.
///
/// # Errors
/// A filter or an endpoint that does not parse.
pub fn start(service: &'static str, filter: &str, endpoint: Option<&str>) -> Result<Tracing, TraceError> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|source| TraceError::ParseFilter { filter: filter.to_owned(), source })?;
    let resource = Resource::builder().with_service_name(service).build();
    let mut provider = SdkTracerProvider::builder().with_resource(resource);
    if let Some(endpoint) = endpoint {
        let exporter =
            opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
        let exporter =
            exporter.map_err(|source| TraceError::Export { endpoint: endpoint.to_owned(), source })?;
        provider = provider.with_batch_exporter(exporter);
    }
    let provider = provider.build();
    let started = tracing_subscriber::registry()
        .with(filter)
        .with(
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                // Colour codes would end in conditions, which repeat the end of a log.
                .with_ansi(std::io::stderr().is_terminal()),
        )
        .with(tracing_opentelemetry::layer().with_tracer(provider.tracer(service)))
        .try_init();
    if started.is_err() {
        // Whoever embeds the process has a subscriber of its own; that one stays.
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

/// Makes `span` a child of the span named in an HTTP request's headers.
pub fn adopt_http(span: &tracing::Span, headers: &HeaderMap) {
    adopt(span, &Headers(headers));
}

/// Makes `span` a child of the span named in a call's metadata.
pub fn adopt_grpc(span: &tracing::Span, metadata: &MetadataMap) {
    adopt(span, &Metadata(metadata));
}

fn adopt(span: &tracing::Span, carrier: &dyn Extractor) {
    let context = TraceContextPropagator::new().extract(carrier);
    // Fails only where no exporter layer is installed; then there is nothing to relate.
    drop(span.set_parent(context));
}

/// Writes the current span into the metadata of a call.
pub fn inject(metadata: &mut MetadataMap) {
    let context = tracing::Span::current().context();
    TraceContextPropagator::new().inject_context(&context, &mut MetadataMut(metadata));
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

struct Metadata<'a>(&'a MetadataMap);

impl Extractor for Metadata<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0
            .keys()
            .map(|key| match key {
                tonic::metadata::KeyRef::Ascii(key) => key.as_str(),
                tonic::metadata::KeyRef::Binary(key) => key.as_str(),
            })
            .collect()
    }
}

struct MetadataMut<'a>(&'a mut MetadataMap);

impl Injector for MetadataMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(key), Ok(value)) = (MetadataKey::from_bytes(key.as_bytes()), value.parse()) {
            self.0.insert(key, value);
        }
    }
}
