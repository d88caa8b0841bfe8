//! What is read and what is refused.

use serde_json::{Value, json};

use crate::client::{KEY, Reply, get, post, send};
use crate::rig::{Rig, Settings, answering};

const CHAT: &str = "/v1/chat/completions";

fn question() -> Value {
    json!({"model": "hypic-tiny", "messages": [{"role": "user", "content": "What is the badge of Mira?"}]})
}

fn with(mut body: Value, more: Value) -> Value {
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

/// The answer is an OpenAI error body with that status and param.
fn assert_refused(reply: &Reply, status: u16, param: Option<&str>) {
    assert_eq!(reply.status, status, "{}", reply.text());
    let error = &reply.json()["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
    assert!(error["type"].is_string(), "{error}");
    assert_eq!(error["param"].as_str(), param, "{error}");
    for word in ["serde", "Rust", "axum", "expected `"] {
        assert!(!error["message"].as_str().unwrap_or_default().contains(word), "{error}");
    }
}

#[tokio::test]
async fn an_answer_has_text_usage_timing_and_what_was_cached() {
    let rig = answering("copper").await;
    let reply = post(rig.address, CHAT, &with(question(), json!({"hypic": {"measure_gap": true}}))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let body = reply.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["choices"][0]["message"], json!({"role": "assistant", "content": "copper"}));
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let usage = &body["usage"];
    assert_eq!(usage["completion_tokens"], 6);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 1);
    let counts = body["hypic"]["counts"].as_object().expect("counts");
    let sum: u64 = counts.values().filter_map(Value::as_u64).sum();
    assert_eq!(Some(sum), usage["prompt_tokens"].as_u64());
    assert_eq!((&body["hypic"]["mode"], &body["hypic"]["gap"]), (&json!("pic"), &json!(0.125)));
    let timing = reply.header("server-timing").expect("timing");
    for station in ["admit", "segment", "lookup", "schedule", "compose", "first-token"] {
        assert!(timing.contains(&format!("{station};dur=")), "{timing}");
    }
}

#[tokio::test]
async fn explicit_nulls_and_whole_floats_are_taken() {
    let rig = answering("one two three").await;
    let nulls = json!({"max_tokens": null, "temperature": null, "top_p": null, "n": null, "stop": null,
        "seed": null, "tools": null, "tool_choice": null, "response_format": null, "logit_bias": null,
        "logprobs": null, "stream_options": null, "user": null, "max_completion_tokens": 8.0, "store": true});
    let body = post(rig.address, CHAT, &with(question(), nulls)).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "one two ");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["usage"]["completion_tokens"], 8);
    let unlimited = post(rig.address, CHAT, &question()).await.json();
    assert_eq!(unlimited["choices"][0]["finish_reason"], "stop");
    for wrong in [json!(8.5), json!(-1), json!("8"), json!(1e30)] {
        let reply = post(rig.address, CHAT, &with(question(), json!({"max_tokens": wrong}))).await;
        assert_refused(&reply, 400, Some("max_tokens"));
    }
}

#[tokio::test]
async fn bodies_that_are_no_json_are_refused_before_any_stream() {
    let rig = answering("x").await;
    let key = format!("Bearer {KEY}");
    let raw = async |body: &[u8]| {
        send(rig.address, &format!("POST {CHAT}"), &[("authorization", &key)], body).await
    };
    let half = |text: &str| format!("{{\"model\":\"hypic-tiny\",\"stream\":true,{text}}}").into_bytes();
    for body in [
        half(r#""messages":[{"role":"user","content":"half \ud83d"}]"#),
        half(r#""messages":[{"role":"tool","content":"half \ud83d"}]"#),
        half(r#""stop":"\ud83d","messages":[]"#),
        half(r#""\ud83d":1"#),
        half(r#""temperature":NaN"#),
        half("\"messages\":[{\"role\":\"user\",\"content\":\"\u{0}\"}]"),
        b"{\"model\":\"\xc3\x28\"}".to_vec(),
        Vec::new(),
        b"[]".to_vec(),
        b"{} trailing".to_vec(),
    ] {
        assert_refused(&raw(&body).await, 400, None);
    }
    let arguments = r#""messages":[{"role":"assistant","tool_calls":[{"id":"a","type":"function",
        "function":{"name":"f","arguments":"{\"a\":\"\\ud83d\"}"}}]}]"#;
    let param = "messages[0].tool_calls[0].function.arguments";
    assert_refused(&raw(&half(arguments)).await, 400, Some(param));
    let pair = r#"{"model":"hypic-tiny","messages":[{"role":"user","content":"\ud83d\ude00"}]}"#;
    assert_eq!(raw(pair.as_bytes()).await.status, 200);
    assert_eq!(raw(format!("\u{feff}{pair}").as_bytes()).await.status, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_with_the_limit_in_words() {
    let bounds = hypic_router::front::Bounds { body: 1000, ..Settings::default().bounds };
    let rig = Rig::start(Settings { bounds, ..Settings::default() }).await;
    let key = format!("Bearer {KEY}");
    let long = vec![b'a'; 100_000];
    let reply = send(rig.address, &format!("POST {CHAT}"), &[("authorization", &key)], &long).await;
    assert_refused(&reply, 413, None);
    assert!(reply.json()["error"]["message"].as_str().expect("words").contains("1000"));
    let chunked = [format!("{:x}\r\n", long.len()).as_bytes(), &long, b"\r\n0\r\n\r\n"].concat();
    let headers = [("authorization", key.as_str()), ("transfer-encoding", "chunked")];
    let reply = send(rig.address, &format!("POST {CHAT}"), &headers, &chunked).await;
    assert_refused(&reply, 413, None);
    let metrics = get(rig.address, "/metrics").await.text();
    let line = "hypic_router_http_requests_total{endpoint=\"chat_completions\",status=\"413\"} 2";
    assert!(metrics.contains(line));
}

#[tokio::test]
async fn probes_answer_while_large_prompts_are_tokenised() {
    let bounds = hypic_router::front::Bounds { body: 8 << 20, ..Settings::default().bounds };
    let rig = Rig::start(Settings { bounds, ..Settings::default() }).await;
    let long = with(question(), json!({"messages": [{"role": "user", "content": "a".repeat(2 << 20)}]}));
    let large = post(rig.address, CHAT, &long);
    let probe = async {
        for _ in 0..10 {
            assert_eq!(get(rig.address, "/healthz").await.status, 200);
        }
    };
    let (large, ()) = tokio::join!(large, probe);
    assert_eq!(large.json()["error"]["code"], "context_length_exceeded");
}

#[tokio::test]
async fn ids_with_a_slash_are_found_in_both_spellings() {
    let rig = Rig::start(Settings { name: "acme/tiny:1", ..Settings::default() }).await;
    assert_eq!(get(rig.address, "/v1/models").await.json()["data"][0]["id"], "acme/tiny:1");
    for path in ["/v1/models/acme/tiny:1", "/v1/models/acme%2Ftiny:1"] {
        assert_eq!(get(rig.address, path).await.json()["id"], "acme/tiny:1", "{path}");
    }
    let none = get(rig.address, "/v1/models/none").await;
    assert_refused(&none, 404, Some("model"));
    assert_eq!(none.json()["error"]["code"], "model_not_found");
    let other = post(rig.address, CHAT, &question()).await;
    assert_refused(&other, 404, Some("model"));
    let key = format!("Bearer {KEY}");
    let head = send(rig.address, "HEAD /v1/models", &[("authorization", &key)], b"").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[tokio::test]
async fn wrong_methods_paths_and_keys_have_json_bodies() {
    let rig = answering("x").await;
    let wrong = get(rig.address, CHAT).await;
    assert_refused(&wrong, 405, None);
    assert_eq!(wrong.header("allow"), Some("POST"));
    assert_refused(&get(rig.address, "/v1/nothing").await, 404, None);
    for headers in [vec![], vec![("authorization", "Bearer sk-wrong")]] {
        let body = question().to_string();
        let reply = send(rig.address, &format!("POST {CHAT}"), &headers, body.as_bytes()).await;
        assert_refused(&reply, 401, None);
        assert!(!reply.text().contains("sk-wrong"));
    }
}

#[tokio::test]
async fn pages_may_call_only_where_their_origin_is_allowed() {
    let origin = ("origin", "http://localhost:3000");
    let preflight = [
        origin,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
    ];
    let origins = vec!["http://localhost:3000".to_owned()];
    let open = Rig::start(Settings { origins, ..Settings::default() }).await;
    let reply = send(open.address, &format!("OPTIONS {CHAT}"), &preflight, b"").await;
    assert_eq!(reply.status, 204);
    let allowed = reply.header("access-control-allow-headers");
    assert_eq!(allowed, Some("authorization,content-type,x-stainless-os"));
    let body = question().to_string();
    let reply = send(open.address, &format!("POST {CHAT}"), &[origin], body.as_bytes()).await;
    assert_refused(&reply, 401, None);
    assert_eq!(reply.header("access-control-allow-origin"), Some("http://localhost:3000"));

    let closed = answering("x").await;
    let reply = send(closed.address, &format!("OPTIONS {CHAT}"), &preflight, b"").await;
    assert_refused(&reply, 405, None);
    assert_eq!(reply.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn prompts_over_the_context_have_the_code_that_clients_act_on() {
    let rig = answering("x").await;
    let ids = |count: usize| json!({"model": "hypic-tiny", "prompt": vec![5; count]});
    for body in [
        ids(17_000),
        ids(16_384),
        with(ids(16_000), json!({"max_tokens": 500})),
        with(ids(17_000), json!({"stream": true})),
    ] {
        let reply = post(rig.address, "/v1/completions", &body).await;
        assert_refused(&reply, 400, Some("prompt"));
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        assert!(error["message"].as_str().expect("words").contains("16384"), "{error}");
    }
    assert_eq!(post(rig.address, "/v1/completions", &ids(16_383)).await.status, 200);
    let long = json!({"messages": [{"role": "user", "content": "badge ".repeat(17_000)}]});
    assert_refused(&post(rig.address, CHAT, &with(question(), long)).await, 400, Some("messages"));
}

#[tokio::test]
async fn modes_follow_the_policy_of_the_key() {
    let rig = answering("x").await;
    let mode = async |asked: Value| {
        post(rig.address, CHAT, &with(question(), json!({"hypic": {"mode": asked}}))).await
    };
    for (asked, used) in [(Value::Null, "pic"), (json!("auto"), "pic"), (json!("recompute"), "recompute")] {
        assert_eq!(mode(asked).await.json()["hypic"]["mode"], used);
    }
    assert_refused(&mode(json!("add")).await, 403, Some("hypic.mode"));
    assert_refused(&mode(json!("fast")).await, 400, Some("hypic.mode"));
    let key = format!("Bearer {KEY}");
    let headers = [("authorization", key.as_str()), ("x-hypic-mode", "prefix")];
    let body = question().to_string();
    let reply = send(rig.address, &format!("POST {CHAT}"), &headers, body.as_bytes()).await;
    assert_eq!(reply.json()["hypic"]["mode"], "prefix");
}

#[tokio::test]
async fn contradictions_and_what_is_not_there_are_refused_by_name() {
    let rig = answering("x").await;
    for (more, param) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), "messages[0].role"),
        (json!({"continue_final_message": true, "add_generation_prompt": true}), "continue_final_message"),
        (json!({"stream_options": {"include_usage": true}, "stream": false}), "stream_options"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"logit_bias": {"999999": 1}}), "logit_bias.999999"),
        (json!({"top_logprobs": 21, "logprobs": true}), "top_logprobs"),
    ] {
        assert_refused(&post(rig.address, CHAT, &with(question(), more)).await, 400, Some(param));
    }
}

#[tokio::test]
async fn strange_requests_add_no_series() {
    let rig = answering("x").await;
    let count = async || get(rig.address, "/metrics").await.text().lines().count();
    count().await;
    let before = count().await;
    for place in 0..20 {
        let name = format!("m-{place}\n\"'\u{1f600}").repeat(50);
        post(rig.address, CHAT, &with(question(), json!({"model": name}))).await;
        get(rig.address, &format!("/v1/x-{place}")).await;
        get(rig.address, &format!("/v1/models/x-{place}")).await;
        send(rig.address, "FOO /v1/models", &[], b"").await;
    }
    assert_eq!(count().await, before);
}

#[tokio::test]
async fn seeds_differ_between_choices_and_come_from_the_request() {
    let rig = answering("x").await;
    let body = with(question(), json!({"n": 3, "seed": -1, "ignore_eos": true, "min_tokens": 2}));
    assert_eq!(post(rig.address, CHAT, &body).await.json()["choices"].as_array().map(Vec::len), Some(3));
    let orders = rig.agents[0].orders.lock().expect("lock");
    let seeds: Vec<u64> = orders[0].order.choices.iter().map(|choice| choice.seed).collect();
    assert_eq!(seeds, [u64::MAX, 0, 1]);
    assert!(orders[0].order.choices[0].stop_ids.is_empty());
    assert_eq!(orders[0].order.choices[0].min_tokens.0, 2);
}
