"""Prompts and ids of transformers' apply_chat_template: python goldens.py MODEL_DIR > fixtures/goldens.json

Every conversation goes through the model's own template and the templates beside the output. A case that
transformers refuses is kept with its message. Content parts are given to the template as the station gives
them: a user's as they are if the template knows parts, else as one string; other roles' as one string.
"""
import json, os, sys
from transformers import AutoTokenizer

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
templates = {"hypic_tiny": tokenizer.chat_template}
for name in ("qwen3_like", "qwen35_like", "odds_and_ends"):
    templates[name] = open(os.path.join(here, name + ".jinja"), encoding="utf-8").read()
knows_parts = {"hypic_tiny": True, "qwen3_like": False, "qwen35_like": True, "odds_and_ends": True}

grep = {"type": "function", "function": {"name": "grep", "description": "temp > 10 & < 50 (user's °C)", "parameters": {
    "type": "object", "properties": {"pattern": {"type": "string"}, "include": {"type": "string", "enum": ["b", "a"]}},
    "required": ["pattern"], "x": 1.0, "y": 1e3, "z": 9007199254740993, "tiny": 1.5e-7, "huge": 1e22, "none": None, "yes": True,
    "empty": {}, "list": [], "text": "tab\t, quote \" and \\, line\n, bell \x07, \u2028 é 🧠"}}}
lookup = {"type": "function", "function": {"name": "lookup", "description": "Looks up one field of a person.", "parameters": {
    "type": "object", "properties": {"name": {"type": "string"}, "field": {"type": "string"}}, "required": ["name", "field"]}}}
turned = {"type": "function", "function": {"description": lookup["function"]["description"], "parameters": lookup["function"]["parameters"],
    "name": "lookup"}}


def call(id, function, **arguments):
    return {"id": id, "type": "function", "function": {"name": function, "arguments": arguments}}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


system = {"role": "system", "content": "You answer questions about the documents."}
ask = {"role": "user", "content": "What is the badge of Mira?"}
says = lambda text, **more: {"role": "assistant", "content": text, **more}
result = lambda id, content: {"role": "tool", "tool_call_id": id, "content": content}
documents = ["## Tower report\n The bright floor finished every spring. Igor permit: heron.\n", "  ## Council diary \n\n",
             "Mira badge: copper. El Niño, naïve 🧠 text.", "What is the badge of Mira?"]
history = [ask, says("", tool_calls=[call("c1", "lookup", name="Mira", field="badge")]), result("c1", "copper")]
cases = {
    "one_turn": dict(messages=[ask]),
    "system": dict(messages=[system, ask]),
    "empty_system": dict(messages=[{"role": "system", "content": ""}, ask]),
    "parts": dict(messages=[system, {"role": "user", "content": parts(*documents)}]),
    "one_part": dict(messages=[system, {"role": "user", "content": parts(ask["content"])}]),
    "tools": dict(messages=[ask], tools=[grep, lookup]),
    "tools_and_system": dict(messages=[system, ask], tools=[lookup]),
    "keys_in_another_order": dict(messages=[system, ask], tools=[turned]),
    "several_turns": dict(messages=[system, ask, says("copper"), {"role": "user", "content": " And of Igor? \n"}, says("\n\nheron "), ask]),
    "two_users_in_a_row": dict(messages=[ask, ask]),
    "only_an_assistant": dict(messages=[says("copper")]),
    "two_systems": dict(messages=[system, {"role": "system", "content": "Be brief."}, ask]),
    "late_system": dict(messages=[ask, says("copper"), {"role": "system", "content": "Be brief."}, ask]),
    "tool_result": dict(messages=history, tools=[lookup]),
    "tool_history": dict(messages=[system] + history + [says("copper"), {"role": "user", "content": "And of Igor?"}], tools=[lookup]),
    "two_calls": dict(messages=[ask, says("I look.", tool_calls=[call("c1", "lookup", city="Oslo", n=1), call("c2", "grep", deep={"a": [1, 2.5, "x"], "b": None},
        yes=True, text="two\nlines", big=1e16)]), result("c1", "A"), result("c2", "B\n"), {"role": "user", "content": "So?"}], tools=[grep, lookup]),
    "empty_arguments": dict(messages=[ask, says("", tool_calls=[call("c1", "lookup")]), result("c1", "none found")]),
    "thinks_in_the_content": dict(messages=[ask, says("<think>\nIt is a badge.\n</think>\n\ncopper"), {"role": "user", "content": "Sure?"}]),
    "thinks_in_a_field": dict(messages=[ask, says("copper", reasoning_content="It is a badge."), {"role": "user", "content": "Sure?"}]),
    "thinks_before_a_call": dict(messages=[ask, says("", reasoning_content="\nI must look.\n", tool_calls=[call("c1", "lookup", name="Mira")]), result("c1", "copper")]),
    "no_thinking": dict(messages=[ask], variables={"enable_thinking": False}),
    "no_generation_prompt": dict(messages=[ask, says("copper")], add_generation_prompt=False),
    "continued": dict(messages=[ask, says("The color is ")], add_generation_prompt=False, continue_final_message=True),
    "white_space": dict(messages=[{"role": "system", "content": " \n"}, {"role": "user", "content": "\n\n  x  \n"}]),
}


def given(messages, template):
    out = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list) and (len(content) == 1 or not knows_parts[template]):
            content = "".join(part["text"] for part in content)
        out.append({**message, "content": content})
    return out


goldens = []
for name, case in cases.items():
    golden = {"case": name, "request": case, "rendered": {}}
    for template, source in templates.items():
        options = dict(tools=case.get("tools"), chat_template=source, add_generation_prompt=case.get("add_generation_prompt", True),
                       continue_final_message=case.get("continue_final_message", False), **case.get("variables", {}))
        try:
            text = tokenizer.apply_chat_template(given(case["messages"], template), tokenize=False, **options)
            golden["rendered"][template] = {"text": text, "ids": tokenizer(text, add_special_tokens=False).input_ids}
        except Exception as error:
            golden["rendered"][template] = {"error": str(error).splitlines()[0]}
    goldens.append(golden)
print("[\n" + ",\n".join(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) for golden in goldens) + "\n]")
