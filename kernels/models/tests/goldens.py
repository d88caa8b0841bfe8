"""Writes the golden logits beside this file: transformers in fp32, prefill and cached decode.

    python goldens.py ../../../e2e/models/hypic-tiny

`hypic-tiny.json` is taken from the checkpoint in the tree; `qwen3_5-tiny/` is a random dense Qwen3.5 text model
with slow decays, made here, together with `qwen3_5-tiny.json`; `qwen3_5_moe-tiny` likewise, with a mixture of experts.
"""
import json
import math
import pathlib
import sys

import torch
from transformers import (AutoModelForCausalLM, AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig,
                          Qwen3_5TextConfig)

HERE = pathlib.Path(__file__).parent
PROMPTS = [
    "Hello",
    "<|im_start|>user\nTobin filed a permit. Igor filed a permit. How many permits did Igor file?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "The tariff of José was 12. " * 40 + "What was the tariff of José in the end?",
]


def row(logits):
    """The top values of one row of logits, its log-sum-exp, and every 97th value."""
    top = logits.topk(5)
    return {
        "top": [[int(i), float(v)] for i, v in zip(top.indices, top.values)],
        "lse": float(torch.logsumexp(logits, -1)),
        "every97": [float(v) for v in logits[::97]],
    }


@torch.no_grad()
def golden(model, prompts, steps):
    cases = []
    for ids in prompts:
        out = model(torch.tensor([ids]), use_cache=True)
        logits = out.logits[0]
        picks = sorted({0, len(ids) // 2, len(ids) - 1})
        case = {"ids": ids, "rows": {str(i): row(logits[i]) for i in picks}, "decode": []}
        past, token = out.past_key_values, int(logits[-1].argmax())
        for _ in range(steps):
            out = model(torch.tensor([[token]]), past_key_values=past, use_cache=True)
            past = out.past_key_values
            case["decode"].append({"id": token, **row(out.logits[0, -1])})
            token = int(out.logits[0, -1].argmax())
        cases.append(case)
    return cases


def write(name, cases):
    (HERE / f"{name}.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


SIZES = dict(
    vocab_size=160, hidden_size=48, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, linear_key_head_dim=16, linear_value_head_dim=16,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_conv_kernel_dim=4, max_position_embeddings=2048,
    tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
)


def qwen3_5():
    torch.manual_seed(5)
    random("qwen3_5-tiny", Qwen3_5ForCausalLM(Qwen3_5TextConfig(intermediate_size=80, **SIZES)))


def qwen3_5_moe():
    torch.manual_seed(6)
    config = Qwen3_5MoeTextConfig(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24,
                                  shared_expert_intermediate_size=40, **SIZES)
    random("qwen3_5_moe-tiny", Qwen3_5MoeForCausalLM(config))


def random(folder, model):
    model = model.float().eval()
    for name, value in model.named_parameters():
        if name.endswith("A_log"):
            half = torch.exp(torch.empty_like(value).uniform_(math.log(8), math.log(8192)))
            # softplus(dt_bias) = 1, so that a head forgets half in `half` tokens.
            value.data = torch.log(math.log(2) / half)
        elif name.endswith("dt_bias"):
            value.data.fill_(math.log(math.e - 1))
        elif "norm" in name:
            value.data.add_(torch.randn_like(value) * 0.1)
        elif value.dim() > 1:
            value.data.normal_(0, 1.0 / math.sqrt(value.shape[-1]))
    model.save_pretrained(HERE / folder)
    (HERE / folder / "generation_config.json").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(9)
    prompts = [torch.randint(0, 160, (n,), generator=generator).tolist() for n in (1, 65, 300)]
    write(folder, golden(model, prompts, 6))


if __name__ == "__main__":
    directory = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    write("hypic-tiny", golden(model, [tokenizer(p)["input_ids"] for p in PROMPTS], 12))
    qwen3_5()
    qwen3_5_moe()
