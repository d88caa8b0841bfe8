//! Against an API server that is a function.

use std::sync::{Arc, Mutex};

use http_body_util::BodyExt;
use hyper::{Method, Request, Response, StatusCode};
use kube::client::Body;
use kube::runtime::events::Reporter;
use serde_json::Value;

use super::*;

/// Method, path with query, and body of each request.
type Calls = Arc<Mutex<Vec<(Method, String, Value)>>>;

fn pool(owner: Option<&str>) -> Value {
    let mut managed = vec![json!({
        "manager": "hypic-operator", "operation": "Apply",
        "fieldsV1": {"f:spec": {"f:clusterName": {}, "f:poolName": {}}},
    })];
    managed.extend(owner.map(|owner| {
        json!({
            "manager": owner, "operation": "Update", "subresource": "scale",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        })
    }));
    json!({
        "apiVersion": "hypic.dev/v1alpha1", "kind": "HypicScatterPool",
        "metadata": {
            "name": "fleet-scatter", "namespace": "ns", "uid": "pool-uid", "managedFields": managed,
            "ownerReferences": [{
                "apiVersion": "hypic.dev/v1alpha1", "kind": "HypicCluster", "name": "fleet", "uid": "cluster-uid",
                "controller": true,
            }],
        },
        "spec": {"clusterName": "fleet", "poolName": "scatter", "replicas": 3},
    })
}

/// A scaler whose patches are answered with this status, on a pool of this owner.
fn scaler(patched: StatusCode, owner: Option<&'static str>) -> (Scaler, Calls) {
    let calls = Calls::default();
    let seen = Arc::clone(&calls);
    let service = tower::service_fn(move |request: Request<Body>| {
        let seen = Arc::clone(&seen);
        async move {
            let (head, body) = request.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap_or_default();
            let (status, answer) = match head.method {
                Method::PATCH if patched != StatusCode::OK => {
                    let why = if patched == StatusCode::CONFLICT { "Conflict" } else { "Invalid" };
                    let failure = json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": why, "message": why,
                        "code": patched.as_u16(),
                    });
                    (patched, failure)
                }
                Method::POST => (StatusCode::CREATED, Value::clone(&body)),
                _ => (StatusCode::OK, pool(owner)),
            };
            seen.lock().unwrap().push((head.method, head.uri.to_string(), body));
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            Ok::<_, std::convert::Infallible>(Response::builder().status(status).body(body).unwrap())
        }
    });
    let client = Client::new(service, "ns");
    let reporter = Reporter { controller: "hypic-operator".into(), instance: Some("pod-1".into()) };
    (Scaler { recorder: Recorder::new(client.clone(), reporter), client }, calls)
}

fn target() -> Target {
    Target { namespace: "ns".into(), object: "fleet-scatter".into() }
}

const PATH: &str = "/apis/hypic.dev/v1alpha1/namespaces/ns/hypicscatterpools/fleet-scatter";

#[tokio::test]
async fn the_number_and_its_owner_are_read_from_the_object() {
    let (scaler, _) = scaler(StatusCode::OK, Some("kubectl"));
    let read = scaler.read(&target()).await.unwrap();
    assert_eq!(read, Replicas { replicas: 3, scaled_by: Some("kubectl".into()) });
}

#[tokio::test]
async fn only_the_number_is_applied_and_without_force() {
    let (scaler, calls) = scaler(StatusCode::OK, None);
    assert_eq!(scaler.set(&target(), 5).await.unwrap(), Written::Done);
    let calls = calls.lock().unwrap();
    let [(method, uri, body)] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!(*method, Method::PATCH);
    let (path, query) = uri.split_once('?').unwrap();
    assert!(path.ends_with(PATH) && query.contains("fieldManager=hypic-autoscaler"), "{uri}");
    assert!(!query.contains("force"), "{uri}");
    let applied = json!({
        "apiVersion": "hypic.dev/v1alpha1", "kind": "HypicScatterPool", "metadata": {"name": "fleet-scatter"},
        "spec": {"replicas": 5},
    });
    assert_eq!(*body, applied);
}

#[tokio::test]
async fn a_conflict_names_who_has_the_number() {
    let (scaler, _) = scaler(StatusCode::CONFLICT, Some("kube-controller-manager"));
    let by = "kube-controller-manager".to_owned();
    assert_eq!(scaler.set(&target(), 5).await.unwrap(), Written::Taken { by });
}

#[tokio::test]
async fn what_is_no_conflict_with_anybody_is_an_error() {
    for (status, owner) in [(StatusCode::CONFLICT, None), (StatusCode::UNPROCESSABLE_ENTITY, Some("kubectl"))]
    {
        let (scaler, _) = scaler(status, owner);
        let error = scaler.set(&target(), 5).await.unwrap_err();
        assert_eq!(error.to_string(), "scale HypicScatterPool 'fleet-scatter'");
    }
}

#[tokio::test]
async fn an_event_regards_the_pool_and_its_cluster() {
    let (scaler, calls) = scaler(StatusCode::OK, None);
    let news = News {
        reason: "ScaledUp",
        action: "ScaleFrom3To5".into(),
        note: "pool scatter: 3 → 5 workers: because.".into(),
        warning: false,
    };
    scaler.publish(&target(), &news).await.unwrap();
    let calls = calls.lock().unwrap();
    let events: Vec<_> = calls.iter().filter(|call| call.0 == Method::POST).collect();
    let regarding: Vec<_> = events
        .iter()
        .map(|(_, uri, event)| {
            assert!(uri.contains("/apis/events.k8s.io/v1/namespaces/ns/events"), "{uri}");
            assert_eq!((&event["reason"], &event["note"]), (&json!("ScaledUp"), &json!(news.note)));
            (event["regarding"]["kind"].clone(), event["regarding"]["uid"].clone())
        })
        .collect();
    let both = [("HypicScatterPool", "pool-uid"), ("HypicCluster", "cluster-uid")];
    assert_eq!(regarding, both.map(|(kind, uid)| (json!(kind), json!(uid))));
}
