//! What chat and plain completions share: sampling, limits, streaming, the mode.

use hypic_domain::sampling::Sampling;
use hypic_domain::unit::Tokens;
use serde_json::Value;

use super::fields::{self, Fields, cut};
use crate::refusal::Refusal;

/// Most choices of one request.
const MOST_CHOICES: u32 = 16;
/// Most stop strings of one request.
const MOST_STOPS: usize = 16;
/// Most likely tokens that may be reported beside the drawn one.
pub(super) const MOST_TOP: u32 = 20;

/// The options of one request, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The model's name as the client wrote it.
    pub model: String,
    /// Answer as a stream of events.
    pub stream: bool,
    /// End the stream with a usage chunk.
    pub include_usage: bool,
    /// Number of choices.
    pub choices: u32,
    /// Longest answer; `None` for what the context leaves.
    pub max_tokens: Option<u32>,
    /// Strings that end an answer.
    pub stop: Vec<String>,
    /// Draw past end-of-text ids.
    pub ignore_eos: bool,
    /// The seed, where the client wants the same answer again.
    pub seed: Option<u64>,
    /// How tokens are drawn; seed, longest answer and end-of-text ids are filled in later.
    pub sampling: Sampling,
    /// The mode asked for.
    pub mode: Option<String>,
    /// Measure the gap to full recompute.
    pub measure_gap: bool,
}

impl Options {
    /// Reads everything but the prompt and `logprobs`, whose form differs.
    pub(super) fn read(body: &Fields<'_>) -> Result<Self, Refusal> {
        refuse_unsupported(body)?;
        let model = body.string("model")?.unwrap_or_default();
        if model.is_empty() {
            return Err(Refusal::bad("model", "'model' must name a model"));
        }
        let stream = body.boolean("stream")?.unwrap_or(false);
        let include_usage = stream_options(body, stream)?;
        // Where both are set the newer name wins.
        let max_tokens = body.count("max_tokens", 1..=u32::MAX)?;
        let max_tokens = body.count("max_completion_tokens", 1..=u32::MAX)?.or(max_tokens);
        let sampling = sampling(body)?;
        if max_tokens.is_some_and(|most| sampling.min_tokens.0 > most) {
            return Err(Refusal::bad("min_tokens", "'min_tokens' is more than the answer may have"));
        }
        let seed = body.integer("seed", i128::from(i64::MIN)..=i128::from(u64::MAX))?;
        let hypic = body.object("hypic")?;
        if let Some(hypic) = &hypic {
            hypic.only(&["mode", "measure_gap"])?;
        }
        let mode = hypic.as_ref().map(|hypic| hypic.string("mode")).transpose()?.flatten();
        let measure_gap = hypic.as_ref().map(|hypic| hypic.boolean("measure_gap")).transpose()?.flatten();
        Ok(Self {
            model: model.to_owned(),
            stream,
            include_usage,
            choices: body.count("n", 1..=MOST_CHOICES)?.unwrap_or(1),
            max_tokens,
            stop: stop(body)?,
            ignore_eos: body.boolean("ignore_eos")?.unwrap_or(false),
            // A negative seed is as good as any other: its bits are the seed.
            seed: seed.map(|seed| seed as u64),
            sampling,
            mode: mode.map(str::to_owned),
            measure_gap: measure_gap.unwrap_or(false),
        })
    }
}

fn sampling(body: &Fields<'_>) -> Result<Sampling, Refusal> {
    let top_p = body.number("top_p", 0.0..=1.0)?.unwrap_or(1.0) as f32;
    if top_p <= 0.0 {
        return Err(Refusal::bad("top_p", "'top_p' must be above 0"));
    }
    // vLLM's clients write -1 for "all".
    let top_k = body.integer("top_k", -1..=i128::from(u32::MAX))?.unwrap_or(0).max(0) as u32;
    Ok(Sampling {
        temperature: body.number("temperature", 0.0..=2.0)?.unwrap_or(1.0) as f32,
        top_p,
        top_k,
        logit_bias: logit_bias(body)?,
        presence_penalty: body.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0) as f32,
        frequency_penalty: body.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0) as f32,
        min_tokens: Tokens(body.count("min_tokens", 0..=u32::MAX)?.unwrap_or(0)),
        stop_ids: stop_ids(body)?,
        ..Sampling::default()
    })
}

fn logit_bias(body: &Fields<'_>) -> Result<Vec<(u32, f32)>, Refusal> {
    let Some(map) = body.object("logit_bias")? else { return Ok(Vec::new()) };
    map.entries()
        .map(|(id, value)| {
            let path = format!("logit_bias.{}", cut(id));
            let id = id.parse().map_err(|_| Refusal::bad(&path, "keys of 'logit_bias' must be token ids"))?;
            Ok((id, fields::number(value, path, -100.0..=100.0)? as f32))
        })
        .collect()
}

fn stop_ids(body: &Fields<'_>) -> Result<Vec<u32>, Refusal> {
    let ids = body.array("stop_token_ids")?.unwrap_or_default();
    let id = |(at, value)| fields::integer(value, &format!("stop_token_ids[{at}]"), 0..=i128::from(u32::MAX));
    // The range has been checked, so the cast keeps the value.
    ids.iter().enumerate().map(|entry| Ok(id(entry)? as u32)).collect()
}

fn stop(body: &Fields<'_>) -> Result<Vec<String>, Refusal> {
    let stops = match body.value("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => {
            let stop = |(at, stop): (usize, &Value)| match stop {
                Value::String(stop) => Ok(stop.clone()),
                other => Err(fields::wrong_type(format!("stop[{at}]"), "a string", other)),
            };
            stops.iter().enumerate().map(stop).collect::<Result<_, _>>()?
        }
        Some(other) => {
            return Err(fields::wrong_type("stop".to_owned(), "a string or an array of strings", other));
        }
    };
    if stops.len() > MOST_STOPS {
        return Err(Refusal::bad("stop", format!("'stop' may hold {MOST_STOPS} strings at most")));
    }
    if stops.iter().any(String::is_empty) {
        return Err(Refusal::bad("stop", "'stop' must not hold an empty string"));
    }
    Ok(stops)
}

fn stream_options(body: &Fields<'_>, stream: bool) -> Result<bool, Refusal> {
    let Some(options) = body.object("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(Refusal::bad("stream_options", "'stream_options' is only allowed when 'stream' is true"));
    }
    Ok(options.boolean("include_usage")?.unwrap_or(false))
}

/// What would change the answer and is not there is refused rather than ignored.
fn refuse_unsupported(body: &Fields<'_>) -> Result<(), Refusal> {
    if let Some(format) = body.object("response_format")?
        && format.string("type")? != Some("text")
    {
        return Err(Refusal::bad("response_format", "only the response format 'text' is supported"));
    }
    for name in ["functions", "function_call", "audio", "guided_json", "guided_regex", "structured_outputs"] {
        if body.value(name).is_some() {
            return Err(Refusal::bad(name, format!("'{name}' is not supported")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(mut body: Value) -> Result<Options, Refusal> {
        body["model"] = json!("hypic-tiny");
        Options::read(&Fields::body(&body)?)
    }

    #[test]
    fn nulls_leave_every_default() {
        let nulls = json!({"max_tokens": null, "temperature": null, "top_p": null, "n": null, "stop": null,
            "seed": null, "response_format": null, "logit_bias": null, "stream_options": null, "user": null,
            "hypic": null, "store": true, "max_completion_tokens": 8.0});
        let expected = Options { max_tokens: Some(8), ..read(json!({})).expect("defaults") };
        assert_eq!(read(nulls), Ok(expected));
        assert_eq!(read(json!({})).expect("defaults").max_tokens, None);
    }

    #[test]
    fn the_newer_limit_wins() {
        let both = read(json!({"max_tokens": 4, "max_completion_tokens": 8}));
        assert_eq!(both.expect("both").max_tokens, Some(8));
    }

    #[test]
    fn every_seed_of_64_bits_is_a_seed() {
        for (seed, bits) in [(json!(-1), u64::MAX), (json!(u64::MAX), u64::MAX), (json!(7.0), 7)] {
            assert_eq!(read(json!({"seed": seed})).expect("seed").seed, Some(bits));
        }
    }

    #[test]
    fn contradictions_and_wrong_types_are_refused_by_name() {
        for (body, param) in [
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": 2.5}), "temperature"),
            (json!({"top_p": 0}), "top_p"),
            (json!({"n": 0}), "n"),
            (json!({"min_tokens": 9, "max_tokens": 8}), "min_tokens"),
            (json!({"stop": [1]}), "stop[0]"),
            (json!({"stop": ""}), "stop"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias.x"),
            (json!({"logit_bias": {"7": 101}}), "logit_bias.7"),
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"hypic": {"mode": 3}}), "hypic.mode"),
            (json!({"hypic": 3}), "hypic"),
            (json!({"hypic": {"mod": "pic"}}), "hypic.mod"),
        ] {
            let refusal = read(body.clone()).expect_err("contradiction");
            assert_eq!(refusal.param(), Some(param), "{body}");
        }
    }
}
