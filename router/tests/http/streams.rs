//! Streamed answers join to the unstreamed ones.

use serde_json::{Value, json};

use crate::client::{Reply, post};
use crate::rig::answering;

const CHAT: &str = "/v1/chat/completions";

fn question(more: Value) -> Value {
    let mut body = json!({"model": "hypic-tiny", "messages": [{"role": "user", "content": "What is the badge of Mira?"}]});
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

fn streamed(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body
}

/// A choice's deltas merged as client libraries do: text appended, calls merged by index.
fn merge(reply: &Reply) -> Value {
    let mut message = json!({"content": null});
    let (mut finish, mut scores) = (Value::Null, Vec::new());
    for chunk in reply.chunks() {
        let Some(choice) = chunk["choices"].as_array().and_then(|choices| choices.first()).cloned() else {
            continue;
        };
        let delta = &choice["delta"];
        for field in ["content", "reasoning_content"] {
            if let Some(text) = delta[field].as_str() {
                assert!(!text.contains('\u{fffd}') || choice["finish_reason"].is_null(), "{chunk}");
                let before = message[field].as_str().unwrap_or_default().to_owned();
                message[field] = json!(before + text);
            }
        }
        for call in delta["tool_calls"].as_array().unwrap_or(&Vec::new()) {
            let index = call["index"].as_u64().expect("an index") as usize;
            if message["tool_calls"].is_null() {
                message["tool_calls"] = json!([]);
            }
            let calls = message["tool_calls"].as_array_mut().expect("a list");
            if index == calls.len() {
                calls.push(json!({"id": call["id"], "type": call["type"], "function": call["function"]}));
            } else {
                assert!(call["id"].is_null() && call["function"]["name"].is_null(), "named twice: {call}");
                let arguments = calls[index]["function"]["arguments"].as_str().expect("text").to_owned();
                let more = call["function"]["arguments"].as_str().expect("text");
                calls[index]["function"]["arguments"] = json!(arguments + more);
            }
        }
        if choice["finish_reason"].is_string() {
            finish = choice["finish_reason"].clone();
        }
        scores.extend(choice["logprobs"]["content"].as_array().cloned().unwrap_or_default());
    }
    assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"));
    json!({"message": message, "finish_reason": finish, "scores": scores})
}

/// The unstreamed answer in the same form; ids of calls differ between requests.
fn whole(reply: &Reply) -> Value {
    let choice = &reply.json()["choices"][0];
    let mut message = choice["message"].clone();
    message.as_object_mut().expect("a message").remove("role");
    let scores = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
    json!({"message": message, "finish_reason": choice["finish_reason"], "scores": scores})
}

fn without_ids(mut answer: Value) -> Value {
    for call in answer["message"]["tool_calls"].as_array_mut().unwrap_or(&mut Vec::new()) {
        assert!(call["id"].as_str().is_some_and(|id| id.starts_with("call_")), "{call}");
        call["id"] = json!("call");
    }
    answer
}

async fn both(rig: &crate::rig::Rig, body: &Value) -> Value {
    let stream = post(rig.address, CHAT, &streamed(body)).await;
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    assert_eq!(stream.header("x-accel-buffering"), Some("no"));
    assert_eq!(stream.header("cache-control"), Some("no-cache"));
    let merged = without_ids(merge(&stream));
    assert_eq!(merged, without_ids(whole(&post(rig.address, CHAT, body).await)));
    merged
}

#[tokio::test]
async fn a_character_spelt_by_several_tokens_arrives_whole() {
    let rig = answering("hi\u{1f9e0}!").await;
    assert_eq!(both(&rig, &question(json!({}))).await["message"]["content"], "hi\u{1f9e0}!");
    let cut = both(&rig, &question(json!({"max_tokens": 4}))).await;
    assert_eq!((&cut["message"]["content"], &cut["finish_reason"]), (&json!("hi\u{fffd}"), &json!("length")));
    let scored = both(&rig, &question(json!({"logprobs": true}))).await;
    let bytes: Vec<u64> = scored["scores"]
        .as_array()
        .expect("scores")
        .iter()
        .flat_map(|score| score["bytes"].as_array().expect("bytes").iter().filter_map(Value::as_u64))
        .collect();
    assert_eq!(bytes, [104, 105, 240, 159, 167, 160, 33]);
}

#[tokio::test]
async fn usage_comes_only_where_it_is_asked_for() {
    let rig = answering("copper").await;
    for (path, base) in [
        (CHAT, question(json!({"n": 2}))),
        ("/v1/completions", json!({"model": "hypic-tiny", "prompt": "Mira", "n": 2})),
    ] {
        for options in [Value::Null, json!({"include_usage": false})] {
            let mut body = streamed(&base);
            body["stream_options"] = options;
            for chunk in post(rig.address, path, &body).await.chunks() {
                assert!(!chunk["choices"].as_array().expect("choices").is_empty());
                assert!(chunk.get("usage").is_none() && chunk.get("hypic").is_none(), "{chunk}");
            }
        }
        let mut body = streamed(&base);
        body["stream_options"] = json!({"include_usage": true});
        let mut chunks = post(rig.address, path, &body).await.chunks();
        let last = chunks.pop().expect("a last chunk");
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 12, "over all choices");
        assert!(last["hypic"]["counts"].is_object());
        for chunk in chunks {
            assert_eq!(chunk.get("usage"), Some(&Value::Null));
            for field in ["id", "model", "created", "object"] {
                assert_eq!(chunk[field], last[field]);
            }
        }
    }
}

#[tokio::test]
async fn reasoning_and_parallel_calls_stream_as_they_answer() {
    let rig = answering("<think>x</think>\n<tool_call>\n{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Oslo\"}}\n</tool_call>\n<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":2,\"s\":\"</tool_call> {\\\"}\"}}\n</tool_call>").await;
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let tools = json!([tool("get_weather"), tool("add")]);
    let answer = both(&rig, &question(json!({"tools": tools}))).await;
    let call = |name: &str, arguments: &str| json!({"id": "call", "type": "function", "function": {"name": name, "arguments": arguments}});
    let expected = json!({"content": null, "reasoning_content": "x", "tool_calls": [
        call("get_weather", "{\"city\":\"Oslo\"}"),
        call("add", "{\"a\":2,\"s\":\"</tool_call> {\\\"}\"}"),
    ]});
    assert_eq!((&answer["message"], &answer["finish_reason"]), (&expected, &json!("tool_calls")));

    let none = both(&rig, &question(json!({"tools": tools, "tool_choice": "none"}))).await;
    assert!(none["message"]["content"].as_str().expect("text").starts_with("<tool_call>"));
    let cut = both(&rig, &question(json!({"tools": tools, "max_tokens": 90}))).await;
    assert_eq!(cut["finish_reason"], "length");
    let single = both(&rig, &question(json!({"tools": tools, "parallel_tool_calls": false}))).await;
    assert_eq!(single["message"]["tool_calls"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn stop_strings_over_token_edges_end_the_answer() {
    let rig = answering("one END two").await;
    let stopped = both(&rig, &question(json!({"stop": ["END", "zwei"]}))).await;
    assert_eq!((&stopped["message"]["content"], &stopped["finish_reason"]), (&json!("one "), &json!("stop")));
    rig.wait_idle().await;
}

#[tokio::test]
async fn scores_are_finite_and_have_the_form_of_their_endpoint() {
    let rig = answering("ab").await;
    rig.agents[0].script(|script| script.logprob = -1e30);
    let chat = both(&rig, &question(json!({"logprobs": true, "top_logprobs": 2}))).await;
    assert_eq!(chat["scores"][0]["logprob"], -9999.0);
    assert_eq!(chat["scores"][0]["top_logprobs"].as_array().map(Vec::len), Some(2));
    assert_eq!(chat["scores"][1]["token"], "b");

    let body = json!({"model": "hypic-tiny", "prompt": "Mira", "logprobs": 0});
    let reply = post(rig.address, "/v1/completions", &body).await.json();
    let logprobs = &reply["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1]));
    assert_eq!(logprobs["top_logprobs"], json!([{"a": -9999.0}, {"b": -9999.0}]));
    let chunks = post(rig.address, "/v1/completions", &streamed(&body)).await.chunks();
    let tokens: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["tokens"].as_array())
        .flatten()
        .collect();
    assert_eq!(tokens, ["a", "b"]);
}
