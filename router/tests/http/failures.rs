//! What happens when something goes away: agents, clients, the index, the time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hypic_router::admission::Limits;
use hypic_router::front::Bounds;
use hypic_router::listen::Connections;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{get, post, post_and_hold, read_until};
use crate::rig::{Rig, Settings};

const CHAT: &str = "/v1/chat/completions";

fn question(stream: bool) -> Value {
    let content = "What is the badge of Mira? ".repeat(8);
    let parts = json!([{"type": "text", "text": content}, {"type": "text", "text": "Answer."}]);
    json!({"model": "hypic-tiny", "stream": stream, "messages": [{"role": "user", "content": parts}]})
}

async fn fleet(agents: usize) -> Rig {
    Rig::start(Settings { agents, ..Settings::default() }).await
}

fn content(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}

#[tokio::test]
async fn an_answer_goes_on_elsewhere_when_its_agent_breaks_off() {
    for dies_after in [0, 5] {
        let rig = fleet(2).await;
        rig.answer("the badge is copper");
        let first =
            rig.agents.iter().map(|agent| agent.script(|script| script.dies_after = Some(dies_after)));
        first.for_each(drop);
        // Whoever is asked second answers to the end.
        let reply = {
            let (one, two) = (rig.agents[0].clone(), rig.agents[1].clone());
            let heal = tokio::spawn(async move {
                loop {
                    let asked = |agent: &crate::stub::Stub| !agent.orders.lock().expect("lock").is_empty();
                    if asked(&one) || asked(&two) {
                        let other = if asked(&one) { &two } else { &one };
                        other.script(|script| script.dies_after = None);
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
            for agent in &rig.agents {
                agent.script(|script| script.before_first = Duration::from_millis(100));
            }
            let reply = post(rig.address, CHAT, &question(true)).await;
            heal.await.expect("healed");
            reply
        };
        assert_eq!(content(&reply.chunks()), "the badge is copper", "{}", reply.text());
        assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"));
        let orders = rig.agents.iter().flat_map(|agent| agent.orders.lock().expect("lock").clone());
        let mut answered: Vec<usize> = orders.map(|order| order.order.answered.len()).collect();
        answered.sort_unstable();
        assert_eq!(answered, [0, dies_after]);
    }
}

#[tokio::test]
async fn half_an_answer_ends_with_an_error_event_when_nobody_can_go_on() {
    let rig = fleet(1).await;
    rig.answer("the badge is copper");
    rig.agents[0].script(|script| script.dies_after = Some(5));
    let reply = post(rig.address, CHAT, &question(true)).await;
    let chunks = reply.chunks();
    assert_eq!(content(&chunks), "the b");
    assert_eq!(chunks.last().expect("an event")["error"]["code"], "agent_lost");
    assert!(!reply.text().contains("[DONE]") && !reply.text().contains("\"stop\""));
    let unstreamed = post(rig.address, CHAT, &question(false)).await;
    assert_eq!(unstreamed.status / 100, 5);
    let metrics = get(rig.address, "/metrics").await.text();
    assert!(metrics.contains("hypic_router_generate_cut_total{reason=\"agent_lost\"} 2"), "{metrics}");
    assert!(metrics.contains("{endpoint=\"chat_completions\",status=\"200\"} 0"));
    rig.wait_idle().await;
}

#[tokio::test]
async fn the_deadline_and_a_shutdown_end_a_stream_with_an_error_event() {
    let bounds = Bounds { deadline: Duration::from_secs(2), ..Settings::default().bounds };
    let rig = Rig::start(Settings { bounds, ..Settings::default() }).await;
    rig.answer("abc");
    rig.agents[0].script(|script| script.between = Duration::from_secs(60));
    let reply = post(rig.address, CHAT, &question(true)).await;
    assert_eq!(reply.chunks().last().expect("an event")["error"]["code"], "deadline_exceeded");
    assert_eq!(post(rig.address, CHAT, &question(false)).await.status, 504);

    let rig = fleet(1).await;
    rig.answer("abc");
    rig.agents[0].script(|script| script.between = Duration::from_secs(60));
    let mut stream = post_and_hold(rig.address, CHAT, &question(true)).await;
    read_until(&mut stream, "\"a\"").await;
    rig.front.stop.cancel();
    read_until(&mut stream, "\"code\":\"shutting_down\"").await;
    rig.wait_idle().await;
}

#[tokio::test]
async fn clients_that_go_away_free_everything() {
    let limits = Limits { running: 4, queued: 64 };
    let rig = Rig::start(Settings { limits, ..Settings::default() }).await;
    rig.answer(&"x".repeat(4000));
    rig.agents[0].script(|script| script.between = Duration::from_millis(50));
    let mut held = Vec::new();
    for place in 0..12 {
        held.push(post_and_hold(rig.address, CHAT, &question(place % 2 == 0)).await);
    }
    while rig.agents[0].running() < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(held);
    rig.wait_idle().await;
    rig.agents[0].script(|script| script.between = Duration::ZERO);
    rig.answer("ok");
    assert_eq!(post(rig.address, CHAT, &question(false)).await.status, 200);
}

#[tokio::test]
async fn silence_is_filled_with_comments_and_headers_come_first() {
    let bounds = Bounds { keep_alive: Duration::from_millis(100), ..Settings::default().bounds };
    let rig = Rig::start(Settings { bounds, ..Settings::default() }).await;
    rig.answer("late");
    rig.agents[0].script(|script| script.before_first = Duration::from_secs(2));
    let mut stream = post_and_hold(rig.address, CHAT, &question(true)).await;
    let before = read_until(&mut stream, ": keep-alive\n\n").await;
    assert!(before.starts_with("HTTP/1.1 200 OK") && !before.contains("data:"), "{before}");
    let after = read_until(&mut stream, "[DONE]").await;
    assert!(after.contains("\"finish_reason\":\"stop\""));
}

#[tokio::test]
async fn a_full_queue_is_a_status_with_a_time_to_come_back() {
    let limits = Limits { running: 1, queued: 1 };
    let rig = Rig::start(Settings { limits, ..Settings::default() }).await;
    rig.answer("x");
    rig.agents[0].script(|script| script.before_first = Duration::from_secs(60));
    let running = post_and_hold(rig.address, CHAT, &question(true)).await;
    while rig.agents[0].running() < 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut waiting = post_and_hold(rig.address, CHAT, &question(true)).await;
    // The headers of a stream come when it is admitted to the queue.
    read_until(&mut waiting, "HTTP/1.1 200 OK").await;
    let refused = post(rig.address, CHAT, &question(true)).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    assert!(
        refused.header("retry-after").and_then(|value| value.parse::<u64>().ok()).is_some_and(|s| s >= 1)
    );
    drop((running, waiting));
    rig.wait_idle().await;
}

#[tokio::test]
async fn a_busy_fleet_and_an_empty_one_say_so() {
    let rig = fleet(1).await;
    rig.agents[0].script(|script| script.busy = true);
    let reply = post(rig.address, CHAT, &question(false)).await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("2")));
    let empty = fleet(0).await;
    assert_eq!(get(empty.address, "/readyz").await.status, 503);
    assert_eq!(get(empty.address, "/healthz").await.status, 200);
    assert_eq!(post(empty.address, CHAT, &question(true)).await.json()["error"]["code"], "no_agent_ready");
}

#[tokio::test]
async fn without_the_index_every_segment_is_cold_and_the_request_is_answered() {
    let rig = fleet(2).await;
    rig.answer("copper");
    for agent in &rig.agents {
        agent.script(|script| script.index_away = true);
    }
    let body = post(rig.address, CHAT, &question(false)).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "copper");
    let cold = body["hypic"]["cold"].as_array().expect("a list");
    assert!(!cold.is_empty() && cold.iter().all(|entry| entry["reason"] == "index_away"), "{body}");
}

#[tokio::test]
async fn a_reader_that_stops_holds_constant_memory_and_holds_up_nobody() {
    let rig = fleet(1).await;
    rig.answer(&"x".repeat(15_000));
    // Scores make the answers larger than what the kernel's socket buffers take.
    let mut body = question(true);
    (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(20));
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut stream = post_and_hold(rig.address, CHAT, &body).await;
        read_until(&mut stream, "data: ").await;
        held.push(stream);
    }
    // What is under way settles: buffers fill, then nothing moves.
    let sent = || rig.agents[0].sent.load(Ordering::SeqCst);
    let mut before = 0;
    while before != sent() {
        before = sent();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(rig.agents[0].running(), 8, "no stopped reader was served to the end");
    rig.answer("quick");
    let quick = post(rig.address, CHAT, &question(false)).await.json();
    assert_eq!(quick["choices"][0]["message"]["content"], "quick");
    drop(held);
    rig.wait_idle().await;
}

#[tokio::test]
async fn tenants_have_scopes_of_their_own_in_their_orders() {
    let rig = fleet(1).await;
    rig.answer("x");
    post(rig.address, CHAT, &question(false)).await;
    let orders = rig.agents[0].orders.lock().expect("lock").clone();
    assert_eq!(orders[0].order.scope, hypic_domain::key::Scope::of_tenant(&[7; 32], "test"));
    assert_eq!(orders[0].order.tenant.as_str(), "test");
}

#[tokio::test]
async fn a_router_that_leaves_says_so_and_still_answers() {
    let rig = fleet(1).await;
    rig.answer("copper");
    assert_eq!(get(rig.address, "/readyz").await.status, 200);
    rig.front.leaving.cancel();
    assert_eq!(get(rig.address, "/readyz").await.status, 503);
    assert_eq!(get(rig.address, "/healthz").await.status, 200);
    assert_eq!(post(rig.address, CHAT, &question(false)).await.status, 200);
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_its_connection_and_frees_its_place() {
    let connections = Connections { most: 1, head: Duration::from_millis(300) };
    let rig = Rig::start(Settings { connections, ..Settings::default() }).await;
    let mut slow = TcpStream::connect(rig.address).await.expect("connects");
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost:").await.expect("writes");
    // Waits for the only place, which the slow one loses.
    assert_eq!(get(rig.address, "/healthz").await.status, 200);
    let mut left = Vec::new();
    // A reset is an end too.
    drop(slow.read_to_end(&mut left).await);
    assert!(!left.starts_with(b"HTTP/1.1 200"), "{left:?}");
}
