"""The whole model's peer: transformers at the shape of Qwen3.5-35B-A3B, random bf16 weights, timed on the same GPU.

Usage: peers_model.py [FILE] [LAYERS], layers in fours, 40 for the whole model; FILE also gets the figures as JSON.
Experts run as grouped products, attention by scaled_dot_product_attention, linear attention by flash-linear-attention where it is
installed and by transformers' own torch code where it is not. Decode is eager, greedy, behind 1,024 tokens.
"""

import json
import sys
import time

import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYERS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
SIZES = dict(
    vocab_size=248_320, hidden_size=2048, num_hidden_layers=LAYERS, num_attention_heads=16, num_key_value_heads=2, head_dim=256,
    linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=32, num_experts=256,
    num_experts_per_tok=8, moe_intermediate_size=512, shared_expert_intermediate_size=512, max_position_embeddings=40_960,
)
figures = {}


def note(key, value):
    figures[key] = value
    print(f"{key:<44} {value:.4e}", flush=True)


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def median_ms(call, repeats):
    call()
    times = []
    for _ in range(repeats):
        wait()
        begun = time.perf_counter()
        call()
        wait()
        times.append((time.perf_counter() - begun) * 1e3)
    return sorted(times)[len(times) // 2]


def model():
    torch.set_default_dtype(torch.bfloat16)
    config = Qwen3_5MoeTextConfig(**SIZES)
    config._attn_implementation, config._experts_implementation = "sdpa", "grouped_mm"
    with torch.device(DEVICE):
        made = Qwen3_5MoeForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return made.eval()


@torch.no_grad()
def main(prompt, batches, live):
    begun = time.perf_counter()
    made = model()
    wait()
    print(f"{sum(p.numel() for p in made.parameters()) / 1e9:.1f} G weights in {time.perf_counter() - begun:.1f} s")
    draw = lambda *shape: torch.randint(0, SIZES["vocab_size"], shape, device=DEVICE)
    ids = draw(1, prompt)
    note(f"transformers_prefill_{prompt}_ms", median_ms(lambda: made(ids, use_cache=True, logits_to_keep=1), 2))
    for batch in batches:
        past = made(draw(batch, live), use_cache=True, logits_to_keep=1).past_key_values
        token = draw(batch, 1)

        def step():
            # The cache grows by a token a step: a handful beside those that are there.
            made(token, past_key_values=past, use_cache=True).logits.argmax(-1).cpu()

        note(f"transformers_decode_b{batch}_ms", median_ms(step, 5))
        del past


if DEVICE == "cuda":
    main(32_768, [1, 32, 128], 1024)
else:
    # Only whether it runs.
    SIZES |= dict(vocab_size=512, hidden_size=64, num_experts=8, moe_intermediate_size=32, shared_expert_intermediate_size=32)
    main(128, [1, 2], 16)
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as file:
        json.dump(figures, file, indent=2)
