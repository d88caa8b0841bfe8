//! The endpoint from outside: what it refuses, what it counts, what it traces, and over IPv6.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::net::{Ipv6Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use hypic_domain::flow::Mode;
use hypic_e2e::client::Client;
use hypic_e2e::fleet::key_of;
use hypic_e2e::pass::MAX_TOKENS;
use serde_json::{Value, json};

use crate::support::{Tested, question, signal, start_with, wait_for, wait_for_index};

fn plain() -> Value {
    json!({"model": "hypic-tiny", "temperature": 0, "max_tokens": 4,
        "messages": [{"role": "user", "content": "Igor permit: heron. What is the permit of Igor?"}]})
}

fn with(more: Value) -> Value {
    let mut body = plain();
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// A scrape by series, read as strictly as the text format allows: every sample has a help and a type line
/// before it, stands beside its family's others, and comes once.
fn scrape(address: &str) -> BTreeMap<String, f64> {
    let (status, text) = Client::new(address, "", "").get("/metrics").unwrap();
    assert_eq!(status, 200);
    assert!(text.ends_with('\n'));
    let (mut series, mut families) = (BTreeMap::new(), HashMap::new());
    let mut family = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split_once(' ').unwrap().0.to_owned();
            assert!(families.insert(family.clone(), None).is_none(), "{family} stands in two places");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!((name, families.insert(name.to_owned(), Some(kind))), (family.as_str(), Some(None)));
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let bare = name.split('{').next().unwrap();
            let kind = families[&family].unwrap();
            let whole = match kind {
                "histogram" => ["_bucket", "_sum", "_count"].iter().find_map(|end| bare.strip_suffix(end)),
                _ => Some(bare),
            };
            assert_eq!(whole, Some(family.as_str()), "{line}");
            assert!(kind != "counter" || bare.ends_with("_total"), "{line}");
            assert!(series.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{name} comes twice");
        }
    }
    series
}

fn counters_are_at_zero_before_the_first_request(tested: &Tested) {
    let router = scrape(tested.fleet.address());
    for must in [
        "hypic_router_http_requests_total{endpoint=\"chat_completions\",status=\"429\"}",
        "hypic_router_segment_cold_total{reason=\"corrupt\"}",
        "hypic_router_generate_cut_total{reason=\"agent_lost\"}",
        "hypic_router_first_token_seconds_count{mode=\"pic\"}",
    ] {
        assert_eq!(router.get(must), Some(&0.0), "{must}");
    }
    let agent = scrape(tested.fleet.agent_http("combine-0").unwrap());
    for must in [
        "hypic_agent_store_corrupt_total",
        "hypic_agent_store_orphans_total",
        "hypic_agent_scatter_failures_total{reason=\"corrupt\"}",
        "hypic_agent_transport_pull_checksum_failures_total",
        "hypic_agent_decode_tokens_total",
    ] {
        assert!(agent.contains_key(must), "{must}");
    }
}

/// Every one is an OpenAI error with its status, and none leaves a series behind.
fn bad_requests_are_refused_by_name(tested: &Tested) {
    let client = tested.fleet.client(&key_of(Mode::Pic));
    client.post("/v1/chat/completions", &plain()).unwrap();
    let before = scrape(tested.fleet.address()).len();
    let far = json!({"model": "hypic-tiny", "prompt": vec![5; 17_000], "max_tokens": 4});
    let chat = "/v1/chat/completions";
    for (path, body, status, param) in [
        (chat, with(json!({"model": "m-1\n\"\u{1f600}"})), 404, Some("model")),
        (chat, with(json!({"messages": []})), 400, Some("messages")),
        (chat, with(json!({"messages": "x"})), 400, Some("messages")),
        (chat, with(json!({"messages": [{"role": "Tool", "content": "x"}]})), 400, Some("messages[0].role")),
        (chat, with(json!({"messages": [{"role": "user", "content": 5}]})), 400, Some("messages[0].content")),
        (
            chat,
            with(json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})),
            400,
            Some("messages[0].content[0].type"),
        ),
        (chat, with(json!({"temperature": "hot"})), 400, Some("temperature")),
        (chat, with(json!({"max_tokens": 3, "min_tokens": 4})), 400, Some("min_tokens")),
        (chat, with(json!({"stream_options": {"include_usage": true}})), 400, Some("stream_options")),
        (chat, with(json!({"hypic": {"mode": "fast"}})), 400, Some("hypic.mode")),
        (chat, with(json!({"hypic": {"mode": "add"}})), 403, Some("hypic.mode")),
        (chat, with(json!({"stream": true, "stop_token_ids": [99_999]})), 400, Some("stop_token_ids")),
        ("/v1/completions", far, 400, Some("prompt")),
        ("/v1/completions", json!({"model": "hypic-tiny", "prompt": [99_999]}), 400, Some("prompt")),
        ("/v1/completions", json!({"model": "hypic-tiny", "prompt": ["a", "b"]}), 400, Some("prompt")),
        ("/v1/nothing", plain(), 404, None),
        ("/v1/models", plain(), 405, None),
    ] {
        let mut reply = client.post(path, &body).unwrap();
        let text = reply.body_mut().read_to_string().unwrap();
        assert_eq!(reply.status(), status, "{text}");
        let error = serde_json::from_str::<Value>(&text).unwrap()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{text}");
        assert_eq!(error["param"].as_str(), param, "{text}");
    }
    for path in ["/v1/models/x-1", "/v1/models/%ff", "/v1/x-2"] {
        let (status, text) = client.get(path).unwrap();
        assert_eq!(status, 404, "{text}");
        assert!(serde_json::from_str::<Value>(&text).unwrap()["error"]["message"].is_string());
    }
    let wrong = tested.fleet.client("sk-wrong").post("/v1/chat/completions", &plain()).unwrap();
    assert_eq!(wrong.status(), 401);
    assert_eq!(scrape(tested.fleet.address()).len(), before);
}

/// Bytes that came on any connection.
fn collector() -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let came = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&came);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (mut socket, all) = (socket.unwrap(), Arc::clone(&all));
            thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(count @ 1..) = socket.read(&mut piece) {
                    all.lock().unwrap().extend_from_slice(&piece[..count]);
                }
            });
        }
    });
    (address, came)
}

#[test]
fn what_is_wrong_is_refused_what_happens_is_counted_and_traced() {
    let (address, came) = collector();
    let tested = start_with(1, 0, |options| {
        let flags = ["--otlp".to_owned(), format!("http://{address}")];
        options.agent_flags = flags.to_vec();
        options.router_flags = flags.to_vec();
    });
    counters_are_at_zero_before_the_first_request(&tested);
    bad_requests_are_refused_by_name(&tested);

    let trace = [0xa7_u8; 16];
    let parent = format!("00-{}-00f067aa0ba902b7-01", "a7".repeat(16));
    let mut asked = ureq::post(format!("http://{}/v1/chat/completions", tested.fleet.address()))
        .header("authorization", format!("Bearer {}", key_of(Mode::Pic)))
        .header("traceparent", parent)
        .content_type("application/json")
        .send(plain().to_string())
        .unwrap();
    asked.body_mut().read_to_string().unwrap();
    // The last spans go out when a process ends. Ids stand in an export as they are: 16 bytes.
    for name in ["router", "combine-0"] {
        signal(&tested, name, "TERM");
    }
    let holds = |what: &[u8]| came.lock().unwrap().windows(what.len()).any(|bytes| bytes == what);
    for what in [&trace[..], b"hypic-router", b"hypic-node-agent", b"lookup", b"compose"] {
        wait_for("the trace at the collector", || holds(what));
    }
}

#[test]
fn a_fleet_on_ipv6_builds_fetches_and_answers() {
    let tested = start_with(2, 1, |options| options.host = Ipv6Addr::LOCALHOST.into());
    assert!(tested.fleet.address().starts_with("[::1]:"));
    let asked = question("6x128-coref-12");
    let client = tested.fleet.client(&key_of(Mode::Pic));
    for built in [6, 0] {
        let answer = client.ask(&asked, MAX_TOKENS, false).unwrap();
        assert_eq!(
            (answer.text.trim(), &answer.hypic["segments"]["built"]),
            (asked.answer.as_str(), &json!(built))
        );
        wait_for_index(&tested, 6);
    }
}
