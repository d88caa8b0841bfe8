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


def ceilings():
    x, y = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16) for _ in range(2))
    note("ceiling_fp16_tflops", 2 * 8192**3 / median_ms(lambda: x @ y) / 1e9)
    a = torch.randn(1 << 30, device=DEVICE)
    b = torch.empty_like(a)
    note("ceiling_copy_gbs", 2 * a.numel() * 4 / median_ms(lambda: b.copy_(a)) / 1e6)


ceilings()
compose_loop()
flash_linear_attention()
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as file:
        json.dump(figures, file, indent=2)
