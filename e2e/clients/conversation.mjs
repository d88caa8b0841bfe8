// A scripted conversation with the unmodified openai package: conversation.mjs PACKAGES BASE_URL KEY
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [packages, baseURL, apiKey] = process.argv.slice(2);
const require = createRequire(pathToFileURL(path.join(packages, "package.json")));
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")).href);

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const document =
  "## Tower report\n Mira badge: copper. The bright floor finished every spring. Igor permit: heron. " +
  "The warm choir waited after the office. Sofia emblem: monsoon. Jonas motto: rabbit.\n";
const tools = [
  {
    type: "function",
    function: {
      name: "lookup",
      description: "Looks up a field of a person.",
      parameters: {
        type: "object",
        properties: { name: { type: "string" }, field: { type: "string" } },
        required: ["name", "field"],
      },
    },
  },
];
const user = (...texts) => ({ role: "user", content: texts.map((text) => ({ type: "text", text })) });

async function streamed(messages, options = {}) {
  const answer = { text: "", calls: [], finish: null, usage: null };
  const stream = await client.chat.completions.create({
    model, messages, temperature: 0, max_tokens: 64, stream: true, stream_options: { include_usage: true }, ...options,
  });
  for await (const chunk of stream) {
    answer.usage = chunk.usage ?? answer.usage;
    for (const choice of chunk.choices) {
      answer.text += choice.delta.content ?? "";
      answer.finish = choice.finish_reason ?? answer.finish;
      for (const call of choice.delta.tool_calls ?? []) {
        const entry = (answer.calls[call.index] ??= { id: "", name: "", arguments: "" });
        entry.id += call.id ?? "";
        entry.name += call.function?.name ?? "";
        entry.arguments += call.function?.arguments ?? "";
      }
    }
  }
  return answer;
}

const messages = [user(document, "What is the permit of Igor?")];
const first = await streamed(messages);
assert.equal(first.finish, "stop");
assert.ok(first.text.trim() && first.usage.prompt_tokens > 0);
messages.push({ role: "assistant", content: first.text }, user("What is the motto of Jonas?"));
const second = await streamed(messages);
assert.equal(second.finish, "stop");
console.log("two turns:", first.text.trim(), second.text.trim());

const whole = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 64 });
assert.equal(whole.choices[0].message.content, second.text);
assert.ok(whole.usage.prompt_tokens_details.cached_tokens > 0);

const asked = [user("Use the tool to look up the badge of Mira.")];
const called = await streamed(asked, { tools });
assert.equal(called.finish, "tool_calls");
assert.equal(called.calls.length, 1);
assert.deepEqual(JSON.parse(called.calls[0].arguments), { name: "Mira", field: "badge" });
console.log("tool call:", called.calls[0].name, called.calls[0].arguments);
asked.push(
  {
    role: "assistant",
    content: null,
    tool_calls: called.calls.map(({ id, name, arguments: args }) => ({
      id, type: "function", function: { name, arguments: args },
    })),
  },
  { role: "tool", tool_call_id: called.calls[0].id, content: "copper" },
);
const after = await streamed(asked, { tools });
assert.ok(["stop", "length", "tool_calls"].includes(after.finish));

await assert.rejects(
  client.chat.completions.create({ model: "no-such-model", messages }),
  (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
);
await assert.rejects(
  client.chat.completions.create({ model, messages: [user("a ".repeat(40000))] }),
  (error) => error instanceof OpenAI.BadRequestError && error.code === "context_length_exceeded",
);
console.log("conversation complete");
