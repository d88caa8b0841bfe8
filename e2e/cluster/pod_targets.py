"""pod_targets.py PKI PORT: the cluster's pods as scrape targets, for a Prometheus built without Kubernetes discovery.

Serves http_sd with the meta labels that Kubernetes discovery would give, one target per pod.
"""

import http.server
import json
import re
import ssl
import sys
import urllib.request

API = "https://10.90.0.1:6443/api/v1/pods"


def target(pod: dict) -> dict:
    meta, status = pod["metadata"], pod["status"]
    labels = {
        "namespace": meta["namespace"],
        "pod_name": meta["name"],
        "pod_ip": status["podIP"],
        "pod_phase": status["phase"],
        "pod_node_name": pod["spec"].get("nodeName", ""),
    }
    for kind in ("annotation", "label"):
        for name, value in meta.get(kind + "s", {}).items():
            labels[f"pod_{kind}_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)] = value
    return {
        "targets": [status["podIP"]],
        "labels": {"__meta_kubernetes_" + name: value for name, value in labels.items()},
    }


def main() -> None:
    pki, port = sys.argv[1:]
    context = ssl.create_default_context(cafile=f"{pki}/ca.crt")
    context.load_cert_chain(f"{pki}/prometheus.crt", f"{pki}/prometheus.key")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                with urllib.request.urlopen(API, context=context, timeout=5) as answer:
                    pods = json.load(answer)["items"]
            except OSError as fault:  # Prometheus keeps the targets that it has
                self.send_error(503, str(fault))
                return
            body = json.dumps([target(pod) for pod in pods if pod["status"].get("podIP")]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, *_: object) -> None:
            """One line per question would only fill the log."""

    http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


main()
