"""Peers of the kernels, timed on the same GPU at the same shape: 64 segments, 16 key heads, 32 value heads of 128.

Usage: peers.py [FILE], which also writes the figures as JSON. Needs PyTorch; flash-linear-attention is timed where it is installed.
Times are medians over CUDA events; random data.
"""

import json
import sys

import torch

SEGMENTS, HEADS, KEY_HEADS, WIDTH, LENGTH = 64, 32, 16, 128, 512
DEVICE = "cuda"
torch.backends.cuda.matmul.allow_tf32 = False
figures = {}


def note(key, value):
    figures[key] = value
    print(f"{key:<44} {value:.4e}", flush=True)


def median_ms(call, warm=5, repeats=15):
    for _ in range(warm):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def as_graph(call):
    """`call` recorded once; returns its replay."""
    call()
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def compose_loop():
    """The anchor's way: one batched fp32 product and a sum per segment, no seam."""
    transition = torch.randn(SEGMENTS, HEADS, WIDTH, WIDTH, device=DEVICE) * 0.05
    body = torch.randn(SEGMENTS, HEADS, WIDTH, WIDTH, device=DEVICE)
    start = torch.randn(HEADS, WIDTH, WIDTH, device=DEVICE)

    def loop():
        state = start
        for n in range(SEGMENTS):
            state = torch.bmm(transition[n], state) + body[n]
        return state

    note("torch_compose_eager_ms", median_ms(loop))
    note("torch_compose_graph_ms", median_ms(as_graph(loop)))


def flash_linear_attention():
    """Chunk prefill without T, and what a second call costs that yields T (v = 0, start = I)."""
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError as error:
        print("flash-linear-attention is not installed:", error)
        return
    tokens = SEGMENTS * LENGTH
    unit = torch.nn.functional.normalize
    q = unit(torch.randn(1, tokens, HEADS, WIDTH, device=DEVICE), dim=-1).bfloat16()
    k = unit(torch.randn(1, tokens, HEADS, WIDTH, device=DEVICE) + 0.3, dim=-1).bfloat16()
    v = torch.randn(1, tokens, HEADS, WIDTH, device=DEVICE).bfloat16()
    g = -torch.rand(1, tokens, HEADS, device=DEVICE) * 1e-3
    beta = torch.rand(1, tokens, HEADS, device=DEVICE)
    starts = torch.arange(0, tokens + 1, LENGTH, device=DEVICE)
    zero = torch.zeros(SEGMENTS, HEADS, WIDTH, WIDTH, device=DEVICE)
    identity = torch.eye(WIDTH, device=DEVICE).expand(SEGMENTS, HEADS, WIDTH, WIDTH).contiguous()
    nothing = torch.zeros_like(v)

    def chunk(values, start):
        return chunk_gated_delta_rule(
            q, k, values, g=g, beta=beta, scale=WIDTH**-0.5, initial_state=start, output_final_state=True, cu_seqlens=starts
        )

    def both():
        chunk(v, zero)
        chunk(nothing, identity)

    with torch.no_grad():
        note("fla_gdn_ms", median_ms(lambda: chunk(v, zero)))
        note("fla_gdn_t_ms", median_ms(both))
        try:
            note("fla_gdn_graph_ms", median_ms(as_graph(lambda: chunk(v, zero))))
            note("fla_gdn_t_graph_ms", median_ms(as_graph(both)))
        except RuntimeError as error:
            print("flash-linear-attention cannot be recorded:", str(error).splitlines()[0])


def attention():
    """One full layer of Qwen3.5-35B-A3B (16 heads, 2 key heads of 256, 64 channels rotated) through scaled_dot_product_attention."""
    heads, kv_heads, width, rotary, tokens, seam, query = 16, 2, 256, 64, SEGMENTS * LENGTH, 8, 24
    sdpa = torch.nn.functional.scaled_dot_product_attention
    draw = lambda *shape: torch.randn(*shape, device=DEVICE).bfloat16()
    with torch.no_grad():
        q, k, v = draw(1, heads, tokens, width), draw(1, kv_heads, tokens, width), draw(1, kv_heads, tokens, width)
        note("sdpa_prefill_32k_ms", median_ms(lambda: sdpa(q, k, v, is_causal=True, enable_gqa=True), 2, 5))
        del q
        # Seams and query: the keys of all pages are gathered and rotated, then attended to under a mask.
        total = tokens + query
        position = torch.arange(total, device=DEVICE)
        live = position[(position % LENGTH < seam) | (position >= tokens)]
        mask = (position[None] <= live[:, None])[None, None]
        pages = torch.randperm(total, device=DEVICE)
        k, v, q = draw(total, kv_heads, width), draw(total, kv_heads, width), draw(1, heads, len(live), width)
        angles = position[:, None].double() * 1e7 ** (-torch.arange(0, rotary, 2, device=DEVICE).double() / rotary)
        cosines, sines = angles.cos().float()[:, None], angles.sin().float()[:, None]

        def rotated():
            keys = k[pages]
            a, b = keys[..., : rotary // 2].float(), keys[..., rotary // 2 : rotary].float()
            turned = torch.cat([a * cosines - b * sines, b * cosines + a * sines], dim=-1).bfloat16()
            return torch.cat([turned, keys[..., rotary:]], dim=-1).transpose(0, 1)[None], v[pages].transpose(0, 1)[None]

        def seams():
            keys, values = rotated()
            return sdpa(q, keys, values, attn_mask=mask, enable_gqa=True)

        keys, values = (x.contiguous() for x in rotated())
        note("sdpa_seam_ready_ms", median_ms(as_graph(lambda: sdpa(q, keys, values, attn_mask=mask, enable_gqa=True))))
        note("sdpa_seam_ms", median_ms(as_graph(seams)))
        many = lambda x: x.repeat_interleave(heads // kv_heads, dim=1)
        wide_keys, wide_values = many(keys), many(values)
        note("sdpa_seam_ready_wide_ms", median_ms(as_graph(lambda: sdpa(q, wide_keys, wide_values, attn_mask=mask))))
        q, k, v = draw(32, heads, 1, width), draw(32, kv_heads, 4096, width), draw(32, kv_heads, 4096, width)
        note("sdpa_decode_b32_4k_ms", median_ms(as_graph(lambda: sdpa(q, k, v, enable_gqa=True))))


def ceilings():
    x, y = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16) for _ in range(2))
    note("ceiling_fp16_tflops", 2 * 8192**3 / median_ms(lambda: x @ y) / 1e9)
    a = torch.randn(1 << 30, device=DEVICE)
    b = torch.empty_like(a)
    note("ceiling_copy_gbs", 2 * a.numel() * 4 / median_ms(lambda: b.copy_(a)) / 1e6)


ceilings()
attention()
compose_loop()
flash_linear_attention()
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as file:
        json.dump(figures, file, indent=2)
