//! A streaming client of the OpenAI endpoint, as plain as a user's curl.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::questions::Question;

/// The endpoint and a key.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    base: String,
    key: String,
    model: String,
    mode: Option<String>,
}

/// One streamed answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// All content deltas.
    pub text: String,
    /// From sending the request to the first content.
    pub ttft: Duration,
    /// The `hypic` block.
    pub hypic: Value,
    /// The usage block.
    pub usage: Value,
    /// Why it ended.
    pub finish: String,
}

impl Answer {
    /// A count of the `hypic` block; absent ones are 0.
    pub fn count(&self, name: &str) -> u64 {
        self.hypic["counts"][name].as_u64().unwrap_or(0)
    }

    /// `exact + hit`.
    pub fn cached(&self) -> u64 {
        self.count("exact") + self.count("hit")
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u64 {
        self.usage["prompt_tokens"].as_u64().unwrap_or(0)
    }
}

impl Client {
    /// A client of `http://{address}` with a key.
    pub fn new(address: &str, key: &str, model: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(600)))
            .http_status_as_error(false)
            .build();
        Self {
            agent: config.into(),
            base: format!("http://{address}"),
            key: key.to_owned(),
            model: model.to_owned(),
            mode: None,
        }
    }

    /// Asks for a mode; the key's policy must allow it.
    pub fn with_mode(mut self, mode: &str) -> Self {
        self.mode = Some(mode.to_owned());
        self
    }

    /// Asks a question: documents as content parts, the question as the last part.
    pub fn ask(&self, question: &Question, max_tokens: u32, measure_gap: bool) -> Result<Answer> {
        let part = |text: &String| json!({"type": "text", "text": text});
        let parts: Vec<Value> = question.documents.iter().chain([&question.question]).map(part).collect();
        self.chat(&json!({
            "model": self.model,
            "messages": [{"role": "system", "content": question.system}, {"role": "user", "content": parts}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "hypic": {"measure_gap": measure_gap, "mode": self.mode},
        }))
    }

    /// Sends a chat request as a stream and reads it to its end.
    pub fn chat(&self, body: &Value) -> Result<Answer> {
        self.chat_while(body, &mut |_| true)
    }

    /// As [`Client::chat`], but `more` is told each content delta as it arrives; once it says no, the client
    /// goes away and gives what it has.
    pub fn chat_while(&self, body: &Value, more: &mut dyn FnMut(&str) -> bool) -> Result<Answer> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let start = Instant::now();
        let mut response = self.post("/v1/chat/completions", &body)?;
        let status = response.status();
        if status != 200 {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            bail!("status {status}: {text}");
        }
        let mut answer = Answer::default();
        let mut done = false;
        for line in BufReader::new(response.body_mut().as_reader()).lines() {
            let line = line.context("read the stream")?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                done = true;
                break;
            }
            let chunk: Value =
                serde_json::from_str(data).with_context(|| format!("a chunk is no JSON: {data}"))?;
            if let Some(error) = chunk.get("error") {
                bail!("error event: {error}");
            }
            let choice = &chunk["choices"][0];
            if let Some(text) = choice["delta"]["content"].as_str().filter(|text| !text.is_empty()) {
                if answer.text.is_empty() {
                    answer.ttft = start.elapsed();
                }
                answer.text.push_str(text);
                if !more(text) {
                    return Ok(answer);
                }
            }
            if let Some(reason) = choice["finish_reason"].as_str() {
                answer.finish = reason.to_owned();
            }
            if chunk["usage"].is_object() {
                answer.usage = chunk["usage"].clone();
            }
            if chunk["hypic"].is_object() {
                answer.hypic = chunk["hypic"].clone();
            }
        }
        if !done {
            bail!("the stream ended before [DONE]");
        }
        Ok(answer)
    }

    /// Posts JSON and gives the response whatever its status.
    pub fn post(&self, path: &str, body: &Value) -> Result<ureq::http::Response<ureq::Body>> {
        let request = self
            .agent
            .post(format!("{}{path}", self.base))
            .header("authorization", format!("Bearer {}", self.key))
            .content_type("application/json");
        request.send(body.to_string()).with_context(|| format!("post {path}"))
    }

    /// Gets a path as text with its status.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        let request = self
            .agent
            .get(format!("{}{path}", self.base))
            .header("authorization", format!("Bearer {}", self.key));
        let mut response = request.call().with_context(|| format!("get {path}"))?;
        let text = response.body_mut().read_to_string().context("read the body")?;
        Ok((response.status().as_u16(), text))
    }

    /// The sum of a metric over all label sets; 0 where it is not there or nobody answers.
    pub fn metric(&self, name: &str) -> f64 {
        let Ok((200, text)) = self.get("/metrics") else { return 0.0 };
        let value = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let value = match rest.strip_prefix('{') {
                Some(labels) => labels.split_once("} ")?.1,
                None => rest.strip_prefix(' ')?,
            };
            value.trim().parse::<f64>().ok()
        };
        text.lines().filter_map(value).sum()
    }
}
