//! `/v1/completions`: text in, text out, nothing read out of it.

use std::time::Instant;

use hypic_domain::prompt::Prompt;
use serde_json::{Value, json};

use super::collect::Collected;
use super::fields::{self, Fields, wrong_type};
use super::options::{MOST_TOP, Options};
use super::scores;
use super::shape::{Head, Shape};
use crate::answer::markup::{Fragment, Reading};
use crate::answer::{Delta, Finish};
use crate::front::Question;
use crate::refusal::Refusal;

/// The plain endpoint.
pub(super) struct Completions;

impl Shape for Completions {
    const ENDPOINT: &'static str = "completions";
    const ID: &'static str = "cmpl";
    const OBJECTS: (&'static str, &'static str) = ("text_completion", "text_completion");

    fn read(body: &Fields<'_>, arrived: Instant) -> Result<Question, Refusal> {
        // Scores of a prompt would have to be computed anew: what is cached has none.
        if body.boolean("echo")? == Some(true) {
            return Err(Refusal::bad("echo", "'echo' is not supported"));
        }
        if body.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(Refusal::bad("suffix", "'suffix' is not supported"));
        }
        let options = Options::read(body)?;
        if body.count("best_of", 1..=u32::MAX)?.is_some_and(|best| best != options.choices) {
            return Err(Refusal::bad("best_of", "'best_of' is not supported"));
        }
        Ok(Question {
            prompt: prompt(body)?,
            options,
            reading: Reading { plain: true, ..Reading::default() },
            logprobs: body.count("logprobs", 0..=MOST_TOP)?,
            arrived,
        })
    }

    fn delta(_: &Head, choice: u32, _: bool, delta: Delta) -> Value {
        let scores = (!delta.scores.is_empty()).then(|| scores::completions(&delta.scores));
        let text: String = delta.fragments.into_iter().filter_map(text).collect();
        json!({"index": choice, "text": text, "logprobs": scores, "finish_reason": null})
    }

    fn finished(choice: u32, _: bool, finish: Finish) -> Value {
        json!({"index": choice, "text": "", "logprobs": null, "finish_reason": finish.name()})
    }

    fn whole(_: &Head, choice: u32, collected: Collected, scored: bool) -> Value {
        let scores = scored.then(|| scores::completions(&collected.scores));
        json!({
            "index": choice, "text": collected.content, "logprobs": scores,
            "finish_reason": collected.finish.map(Finish::name),
        })
    }
}

/// A plain reading has content only.
fn text(fragment: Fragment) -> Option<String> {
    match fragment {
        Fragment::Content(text) => Some(text),
        Fragment::Reasoning(_) | Fragment::CallStart { .. } | Fragment::CallArguments { .. } => None,
    }
}

/// A string, token ids, or a list of exactly one of them.
fn prompt(body: &Fields<'_>) -> Result<Prompt, Refusal> {
    let Some(value) = body.value("prompt") else {
        return Err(Refusal::bad("prompt", "'prompt' is required"));
    };
    let value = match value.as_array().map(Vec::as_slice) {
        Some([only @ (Value::String(_) | Value::Array(_))]) => only,
        Some([Value::String(_) | Value::Array(_), ..]) => {
            return Err(Refusal::bad("prompt", "several prompts in one request are not supported"));
        }
        _ => value,
    };
    match value {
        Value::String(text) if text.is_empty() => Err(Refusal::bad("prompt", "'prompt' must not be empty")),
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(ids) if ids.is_empty() => Err(Refusal::bad("prompt", "'prompt' must not be empty")),
        Value::Array(ids) => {
            let id = |(at, id): (usize, &Value)| {
                fields::integer(id, &format!("prompt[{at}]"), 0..=i128::from(u32::MAX)).map(|id| id as u32)
            };
            Ok(Prompt::Ids(ids.iter().enumerate().map(id).collect::<Result<_, _>>()?))
        }
        other => Err(wrong_type("prompt".to_owned(), "a string or token ids", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(prompt: Value) -> Result<Prompt, Refusal> {
        let body = json!({"model": "hypic-tiny", "prompt": prompt});
        Completions::read(&Fields::body(&body)?, Instant::now()).map(|question| question.prompt)
    }

    #[test]
    fn a_prompt_is_text_or_ids_alone_or_in_a_list_of_one() {
        let text = Ok(Prompt::Text("one".to_owned()));
        assert_eq!(read(json!("one")), text);
        assert_eq!(read(json!(["one"])), text);
        assert_eq!(read(json!([1, 2.0])), Ok(Prompt::Ids(vec![1, 2])));
        assert_eq!(read(json!([[1, 2]])), Ok(Prompt::Ids(vec![1, 2])));
        for wrong in
            [json!(""), json!([]), json!(["a", "b"]), json!([[]]), json!(3), json!([1.5]), Value::Null]
        {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
