"""A scripted conversation with the unmodified openai package: conversation.py BASE_URL KEY"""

import json
import sys

import openai

base_url, key = sys.argv[1:3]
client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
MODEL = client.models.list().data[0].id
DOCUMENT = (
    "## Tower report\n Mira badge: copper. The bright floor finished every spring. Igor permit: heron. "
    "The warm choir waited after the office. Sofia emblem: monsoon. Jonas motto: rabbit.\n"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks up a field of a person.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "field": {"type": "string"}},
            "required": ["name", "field"],
        },
    },
}


def user(*texts):
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def streamed(messages, **options):
    """The answer of a stream: text, tool calls, finish reason, usage."""
    text, calls, finish, usage = "", {}, None, None
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=64, stream=True,
        stream_options={"include_usage": True}, **options,
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                entry = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                entry["id"] += call.id or ""
                entry["name"] += call.function.name or ""
                entry["arguments"] += call.function.arguments or ""
    return text, calls, finish, usage


# Two turns, streamed; the second continues the first.
messages = [user(DOCUMENT, "What is the permit of Igor?")]
first, _, finish, usage = streamed(messages)
assert finish == "stop" and first.strip(), (first, finish)
assert usage.prompt_tokens > 0 and usage.completion_tokens > 0, usage
messages += [{"role": "assistant", "content": first}, user("What is the motto of Jonas?")]
second, _, finish, usage = streamed(messages)
assert finish == "stop" and second.strip(), (second, finish)
print("two turns:", first.strip(), second.strip())

# The same unstreamed gives the same text.
whole = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=64)
assert whole.choices[0].message.content == second, (whole.choices[0].message.content, second)
assert whole.usage.prompt_tokens_details.cached_tokens > 0, whole.usage

# A tool that the model really calls, and its result.
asked = [user("Use the tool to look up the badge of Mira.")]
text, calls, finish, _ = streamed(asked, tools=[TOOL])
assert finish == "tool_calls" and len(calls) == 1, (text, calls, finish)
call = calls[0]
assert call["name"] == "lookup" and call["id"], call
assert json.loads(call["arguments"]) == {"name": "Mira", "field": "badge"}, call
print("tool call:", call["name"], call["arguments"])
asked += [
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}]},
    {"role": "tool", "tool_call_id": call["id"], "content": "copper"},
]
text, _, finish, _ = streamed(asked, tools=[TOOL])
assert finish in ("stop", "length", "tool_calls"), finish
print("after the result:", text.strip())

# Errors that frameworks act on.
try:
    client.chat.completions.create(model="no-such-model", messages=messages)
    raise AssertionError("an unknown model was served")
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error
try:
    client.chat.completions.create(model=MODEL, messages=[user("a " * 40000)])
    raise AssertionError("a prompt over the context was served")
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded", error
try:
    openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0).models.list()
    raise AssertionError("a wrong key was served")
except openai.AuthenticationError:
    pass
print("conversation complete")
