//! The HTTP face of a process that serves nothing else over HTTP: `/healthz`, `/readyz`, `/metrics`.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// What the probes ask.
pub trait Probed: Send + Sync + 'static {
    /// `Ok` when the process can do its work; otherwise what it waits for.
    fn ready(&self) -> Result<(), String>;
    /// The metrics in the text format.
    fn metrics(&self) -> String;
}

/// Serves probes until the task is dropped.
pub async fn serve(listener: TcpListener, probed: Arc<dyn Probed>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // Out of file descriptors, mostly: pause, or the loop would spin.
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    continue;
                };
                let probed = Arc::clone(&probed);
                connections.spawn(async move {
                    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                        let response = answer(&*probed, request.method(), request.uri().path());
                        std::future::ready(Ok::<_, Infallible>(response))
                    });
                    let served = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(std::time::Duration::from_secs(10))
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                    if let Err(error) = served {
                        tracing::debug!(%error, "a probe's connection");
                    }
                });
            }
        }
    }
}

fn answer(probed: &dyn Probed, method: &Method, path: &str) -> Response<Full<Bytes>> {
    if method != Method::GET && method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/healthz" => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => match probed.ready() {
            Ok(()) => text(StatusCode::OK, "ready\n".to_owned()),
            Err(waits) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{waits}\n")),
        },
        "/metrics" => text(StatusCode::OK, probed.metrics()),
        _ => text(StatusCode::NOT_FOUND, "no such path\n".to_owned()),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Waiting;

    impl Probed for Waiting {
        fn ready(&self) -> Result<(), String> {
            Err("the model is loading".to_owned())
        }
        fn metrics(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn health_is_not_readiness() {
        let status = |path: &str| answer(&Waiting, &Method::GET, path).status();
        assert_eq!(status("/healthz"), 200);
        assert_eq!(status("/readyz"), 503);
        assert_eq!(status("/nothing"), 404);
        assert_eq!(answer(&Waiting, &Method::POST, "/healthz").status(), 405);
    }
}
