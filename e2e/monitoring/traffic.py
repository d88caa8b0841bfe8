"""Traffic that moves every panel: documents known and new in any order, answers of several tokens, several keys."""

import argparse
import json
import random
import sys
import time
import urllib.error
import urllib.request

WORDS = "amber badge cannon copper gravel kernel lamp marble paper pebble river saddle table timber velvet wagon".split()
# hypic-tiny ends its answers after a word; these are its two tokens that say so.
GO_ON = {"3063": -100, "3065": -100}


def document(source, words):
    """Text that nobody has sent before."""
    return " ".join(source.choice(WORDS) for _ in range(words))


def ask(address, key, parts, tokens):
    """One streamed answer, read to its end."""
    content = [{"type": "text", "text": part} for part in parts]
    body = {
        "model": "hypic-tiny",
        "stream": True,
        "max_tokens": tokens,
        "logit_bias": GO_ON,
        "messages": [{"role": "user", "content": content}],
    }
    request = urllib.request.Request(
        f"{address.rstrip('/')}/v1/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        if b"data: [DONE]" not in answer.read():
            raise ValueError("the stream ended early")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="of a router, such as http://127.0.0.1:8080")
    parser.add_argument("--key", action="append", required=True, help="API key; taken in turn when given again")
    parser.add_argument("--seconds", type=float, default=300, help="how long (%(default)s)")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds between two requests (%(default)s)")
    parser.add_argument("--cold", type=float, default=0.4, help="share of requests with a new document (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the documents (%(default)s)")
    args = parser.parse_args()
    source = random.Random(args.seed)
    known = [document(source, 60) for _ in range(6)]
    end, asked, failed = time.monotonic() + args.seconds, 0, 0
    while time.monotonic() < end:
        parts = source.sample(known, 3)
        if source.random() < args.cold:
            parts.insert(source.randrange(4), document(source, 60))
        try:
            ask(args.address, args.key[asked % len(args.key)], [*parts, "What is the badge of Mira?"], 8)
        except (urllib.error.URLError, ValueError) as error:
            failed += 1
            print(f"request {asked}: {error}", file=sys.stderr)
        asked += 1
        time.sleep(args.pause)
    print(f"{asked} requests, {failed} failed")


if __name__ == "__main__":
    main()
