#!/usr/bin/env python3
"""Makes one table and one JSON file of what h200.sh left in a folder: every bar of DESIGN §8 that needs a GPU, what was seen, and
what others need for the same, all of one run.

Usage: table.py OUT [JSON]; JSON is docs/benchmarks/h200.json.
"""

import datetime
import json
import pathlib
import sys

# Qwen3.5-35B-A3B in bf16: bytes of an expert, of layers' other weights and the head, layers, experts, chosen.
EXPERT, REST, LAYERS, EXPERTS, CHOSEN = 3 * 512 * 2048 * 2, 3.9e9, 40, 256, 8
# Bars: key, bound, and whether more is better.
BARS = [
    ("compose_seam_ms", 0.10, False), ("compose_seam_fp32_ms", 0.15, False), ("gdn_t_ms", 0.60, False), ("t_extra_ms", 0.15, False),
    ("t_share", 0.02, False), ("prefill_32k_ms", 600, False), ("warm_32k_ms", 60, False), ("warm_vs_prefix", 8, True),
    ("warm_host_ms", 110, False), ("added_segment_ms", 0.3, False), ("decode_b1", 0.6, True), ("decode_b32", 0.6, True),
    ("decode_b128", 0.6, True), ("scatter_2gpu", 1.7, True),
]
PEERS = {
    "compose_seam_ms": ("torch_compose_graph_ms", "torch loop without seam, as a graph"),
    "compose_seam_fp32_ms": ("torch_compose_graph_ms", "the same"),
    "gdn_t_ms": ("fla_gdn_t_graph_ms", "flash-linear-attention, twice"),
    "t_extra_ms": ("fla_gdn_graph_ms", "flash-linear-attention, once more"),
    "prefill_32k_ms": ("transformers_prefill_32768_ms", "transformers"),
    "decode_b1": ("transformers_decode_b1", "transformers"),
    "decode_b32": ("transformers_decode_b32", "transformers"),
    "decode_b128": ("transformers_decode_b128", "transformers"),
}


def read(folder, name):
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def floor_ms(batch, gigabytes_a_second):
    """Time of the bytes of weights that a step of so many sequences reads, whose rows choose experts at random."""
    reached = EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** batch)
    return (REST + LAYERS * reached * EXPERT) / gigabytes_a_second / 1e6


def figures(folder):
    kernels, model = read(folder, "kernels"), read(folder, "model")
    found = {**kernels, **read(folder, "peers"), **read(folder, "peers_model")}
    found |= {f"model_{key}": value for key, value in model.items() if isinstance(value, (int, float))}
    for key, parts in model.items():
        if isinstance(parts, dict):
            found |= {f"{key.replace(': ', '_').replace(' ', '_')}_{part}": value for part, value in parts.items()}

    def note(key, of, *sources):
        values = [model[source] for source in sources if source in model]
        if len(values) == len(sources):
            found[key] = of(*values)

    note("prefill_32k_ms", float, "prefill_32k_steps_of_32768")
    note("warm_32k_ms", float, "warm_32k")
    note("warm_host_ms", float, "warm_host")
    note("added_segment_ms", float, "added_segment")
    note("warm_vs_prefix", lambda cold, warm: cold / warm, "prefill_32k_steps_of_32768", "warm_32k")
    note("t_share", lambda whole, without: (whole - without) / whole, "builds_32k", "builds_32k_without_t")
    note("scatter_2gpu", lambda one, two: one / two, "cold_32k_steps_of_8192", "cold_32k_2gpu_steps_of_8192")
    rate = found.get("ceiling_copy_gbs", 4270.0)
    for batch in [1, 32, 128]:
        note(f"decode_b{batch}", lambda ms: floor_ms(batch, rate) / ms, f"decode_b{batch}")
        if f"transformers_decode_b{batch}_ms" in found:
            found[f"transformers_decode_b{batch}"] = floor_ms(batch, rate) / found[f"transformers_decode_b{batch}_ms"]
    return found


def main():
    folder = pathlib.Path(sys.argv[1])
    found = figures(folder)
    print("| key | seen | bar | beside it, same run |\n| --- | --- | --- | --- |")
    for key, bar, more in BARS:
        if key not in found:
            print(f"| `{key}` | not run | {bar} | |")
            continue
        met = "met" if (found[key] >= bar) == more or found[key] == bar else "missed"
        peer, what = PEERS.get(key, ("", ""))
        beside = f"{what} {found[peer]:.4g}" if peer in found else ""
        print(f"| `{key}` | {found[key]:.4g} | {bar}, {met} | {beside} |")
    if len(sys.argv) > 2:
        machine = (folder / "machine.txt").read_text().splitlines()[0].split(",")
        text = {
            "machine": f"{machine[0].strip()}, driver {machine[1].strip()}",
            "date": datetime.date.today().isoformat(),
            "command": "kernels/cuda/bench/h200.sh OUT",
            "figures": dict(sorted(found.items())),
        }
        pathlib.Path(sys.argv[2]).write_text(json.dumps(text, indent=2) + "\n")


main()
