"""The baseline of `hypic-bench prefill`: transformers in fp32 on the CPU.

    python prefill_torch.py CHECKPOINT THREADS

Reads lines "TOKENS DECODED" and answers each with "PREFILL_MS DECODE_MS": the time to the logits of a prompt's last
token, and of one decoded token after it.
"""
import sys
import time

import torch
from transformers import AutoModelForCausalLM
from transformers import logging

logging.set_verbosity_error()
torch.set_num_threads(int(sys.argv[2]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
print("ready", flush=True)
with torch.inference_mode():
    for line in sys.stdin:
        tokens, decoded = map(int, line.split())
        ids = (torch.arange(tokens) * 7919 % model.config.vocab_size)[None]
        start = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        prefill = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(decoded):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
        decode = (time.perf_counter() - start) / max(decoded, 1)
        print(prefill * 1e3, decode * 1e3, flush=True)
