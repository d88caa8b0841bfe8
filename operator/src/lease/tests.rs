use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use hyper::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// Keeps one lease as an API server does. Counts what is written, and where.
#[derive(Default)]
struct Server {
    lease: Mutex<Option<Value>>,
    writes: Mutex<Vec<String>>,
}

/// What happens to the requests of one client.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    Up,
    /// They are never answered.
    Down,
    /// They are carried out, and the answers are lost.
    Deaf,
}

type Switch = Arc<Mutex<Link>>;

impl Server {
    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        const ALL: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
        assert!(path == ALL || path == format!("{ALL}/operator"), "{path}");
        let mut kept = self.lease.lock().unwrap();
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let refuse = |code: u16, reason: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code});
            (StatusCode::from_u16(code).unwrap(), status)
        };
        let mut next = match (method, kept.as_ref()) {
            (&Method::GET, Some(lease)) => return (StatusCode::OK, lease.clone()),
            (&Method::GET | &Method::PUT, None) => return refuse(404, "NotFound"),
            (&Method::POST, Some(_)) => return refuse(409, "Conflict"),
            (&Method::PUT, Some(lease)) => {
                let sent: Value = serde_json::from_slice(body).unwrap();
                if version(&sent) != version(lease) {
                    return refuse(409, "Conflict");
                }
                sent
            }
            (&Method::POST, None) => serde_json::from_slice(body).unwrap(),
            _ => panic!("{method} {path}"),
        };
        let new = kept.as_ref().map_or(1, |lease| version(lease).parse::<u64>().unwrap() + 1);
        next["metadata"]["resourceVersion"] = json!(new.to_string());
        *kept = Some(next.clone());
        self.writes.lock().unwrap().push(format!("{method} {path}"));
        (StatusCode::OK, next)
    }

    fn client(self: &Arc<Self>) -> (Client, Switch) {
        let (server, switch) = (Arc::clone(self), Arc::new(Mutex::new(Link::Up)));
        let link = Arc::clone(&switch);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, link) = (Arc::clone(&server), Arc::clone(&link));
            async move {
                let now = *link.lock().unwrap();
                if now == Link::Down {
                    return std::future::pending().await;
                }
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let (code, answer) = server.answer(&head.method, head.uri.path(), &body);
                if now == Link::Deaf {
                    return std::future::pending().await;
                }
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
            }
        });
        (Client::new(service, "ns"), switch)
    }

    fn holder(&self) -> String {
        let lease = self.lease.lock().unwrap();
        lease.as_ref().unwrap()["spec"]["holderIdentity"].as_str().unwrap().to_owned()
    }

    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut kept = self.lease.lock().unwrap();
        let lease = kept.as_mut().unwrap();
        change(lease);
        let version: u64 = lease["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        lease["metadata"]["resourceVersion"] = json!((version + 1).to_string());
    }
}

fn config(identity: &str) -> LeaseConfig {
    LeaseConfig {
        namespace: "ns".to_owned(),
        name: "operator".to_owned(),
        identity: identity.to_owned(),
        timing: Timing::default(),
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_back_changes_hands_at_once_and_the_token_grows() {
    let server = Arc::new(Server::default());
    let first = acquire(server.client().0, config("a")).await;
    assert_eq!(first.token(), 0);
    let second = tokio::spawn(acquire(server.client().0, config("b")));
    sleep(MINUTE).await;
    assert!(!second.is_finished());
    let begun = Instant::now();
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert!(begun.elapsed() <= Timing::default().retry);
    assert_eq!((second.token(), server.holder().as_str()), (1, "b"));
}

#[tokio::test(start_paused = true)]
async fn only_the_lease_is_written_and_only_as_often_as_it_must() {
    let server = Arc::new(Server::default());
    let leads = acquire(server.client().0, config("a")).await;
    let waits = tokio::spawn(acquire(server.client().0, config("b")));
    sleep(10 * MINUTE + Duration::from_secs(1)).await;
    let writes = server.writes.lock().unwrap().clone();
    assert_eq!(writes.len(), 1 + 120);
    assert!(writes[1..].iter().all(|write| write.starts_with("PUT ") && write.ends_with("/leases/operator")));
    waits.abort();
    drop(leads);
}

#[tokio::test(start_paused = true)]
async fn who_is_cut_off_has_lost_before_anybody_else_leads() {
    let server = Arc::new(Server::default());
    let (client, link) = server.client();
    let first = acquire(client, config("a")).await;
    let other = server.client().0;
    let second = tokio::spawn(async {
        let second = acquire(other, config("b")).await;
        (second, Instant::now())
    });
    sleep(MINUTE).await;
    *link.lock().unwrap() = Link::Down;
    assert_eq!(first.lost().await, Lost::Late);
    let lost = Instant::now();
    assert!(!second.is_finished());
    let (second, taken) = second.await.unwrap();
    assert!(taken >= lost + Duration::from_secs(3), "{:?}", taken - lost);
    assert_eq!(second.token(), 1);
    // Its own lease is not given back by the one that lost it.
    *link.lock().unwrap() = Link::Up;
    first.release().await.unwrap();
    assert_eq!(server.holder(), "b");
}

#[tokio::test(start_paused = true)]
async fn lost_answers_and_writes_of_others_to_the_object_cost_no_leadership() {
    let server = Arc::new(Server::default());
    let (client, link) = server.client();
    let leads = acquire(client, config("a")).await;
    for _ in 0..5 {
        server.change(|lease| lease["metadata"]["annotations"] = json!({"by": "somebody"}));
        sleep(MINUTE).await;
    }
    // One renewal arrives, and its answer does not; the next one begins when the client gives up on it.
    sleep(Duration::from_secs(1)).await;
    *link.lock().unwrap() = Link::Deaf;
    sleep(Duration::from_secs(6)).await;
    *link.lock().unwrap() = Link::Up;
    assert!(timeout(MINUTE, leads.lost()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_taken_or_deleted_is_lost() {
    let server = Arc::new(Server::default());
    let leads = acquire(server.client().0, config("a")).await;
    server.change(|lease| lease["spec"]["holderIdentity"] = json!("thief"));
    assert_eq!(leads.lost().await, Lost::Taken { holder: "thief".to_owned() });
    leads.release().await.unwrap();
    assert_eq!(server.holder(), "thief");

    let server = Arc::new(Server::default());
    let leads = acquire(server.client().0, config("a")).await;
    *server.lease.lock().unwrap() = None;
    assert_eq!(leads.lost().await, Lost::Taken { holder: String::new() });
}

#[tokio::test(start_paused = true)]
async fn of_many_candidates_one_leads() {
    let server = Arc::new(Server::default());
    let mut candidates = JoinSet::new();
    for name in ["a", "b", "c", "d"] {
        candidates.spawn(acquire(server.client().0, config(name)));
    }
    let leads = candidates.join_next().await.unwrap().unwrap();
    sleep(MINUTE).await;
    assert!(candidates.try_join_next().is_none());
    assert_eq!(server.holder(), leads.held.config.identity);
}
