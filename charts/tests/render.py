"""Rendering a chart for the cases."""

import os
import pathlib
import re
import subprocess

import yaml

CHARTS = pathlib.Path(__file__).resolve().parents[1]
HELM = os.environ.get("HELM", "helm")
MONITORING = "monitoring.coreos.com/v1"


class Loader(yaml.SafeLoader):
    """Reads as Kubernetes does: 1e3 is a number there, and a key given twice is an error."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise ValueError(f"keys given twice: {sorted(twice)} {node.start_mark}")
        return super().construct_mapping(node, deep)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9.]*[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class Refused(Exception):
    """What Helm said when it did not render."""


def helm_template(*flags, chart="hypic", release="hypic", namespace="hypic-system", values=None, kinds=()):
    """The text that Helm renders. `values` is YAML as in a file; `kinds` are API versions of the cluster."""
    command = [HELM, "template", release, str(CHARTS / chart), "--namespace", namespace, *flags]
    command += [f"--api-versions={kind}" for kind in kinds]
    if values is not None:
        command += ["--values", "-"]
    done = subprocess.run(command, input=values, capture_output=True, text=True)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def render(*flags, **options):
    """The rendered objects; none is there twice."""
    objects = {}
    for found in yaml.load_all(helm_template(*flags, **options), Loader):
        if found:
            key = (found["kind"], found["metadata"].get("namespace"), found["metadata"]["name"])
            if key in objects:
                raise ValueError(f"rendered twice: {key}")
            objects[key] = found
    return list(objects.values())


def of_kind(objects, kind):
    """Those of one kind."""
    return [found for found in objects if found["kind"] == kind]


def pod(objects):
    """The pod template of the operator's Deployment."""
    (deployment,) = of_kind(objects, "Deployment")
    return deployment["spec"]["template"]


def flags_of(objects):
    """{flag: [values]} of the operator."""
    (container,) = pod(objects)["spec"]["containers"]
    found = {}
    for arg in container["args"]:
        flag, _, value = arg.partition("=")
        found.setdefault(flag, []).append(value)
    return found


def rendered_tests():
    """Values with which every template is rendered, for checks of fields."""
    return {
        "as it is": ((), {}),
        "with monitors": ((), {"kinds": (MONITORING,)}),
        "all set": (
            ("--set", "replicas=2", "--set", "watchNamespaces={a,b}", "--set", "image.pullSecrets[0].name=regcred"),
            {"kinds": (MONITORING,), "values": EVERYTHING},
        ),
    }


EVERYTHING = """
otlp: http://collector:4317
extraArgs: [--verbose]
extraEnv: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
priorityClassName: system-cluster-critical
nodeSelector: {disk: ssd}
tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 1
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector: {matchLabels: {a: b}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: {a: b}}
podLabels: {team: serving}
podAnnotations: {note: "true"}
serviceAccount: {annotations: {role: "1"}}
networkPolicy:
  extraEgress:
    - to: [{ipBlock: {cidr: 10.0.0.0/8}}]
      ports: [{port: 3128, protocol: TCP}]
metrics:
  fromNamespaceLabels: {kubernetes.io/metadata.name: monitoring}
  monitors: {labels: {release: prometheus}}
  rules: {labels: {release: prometheus}, runbooks: "https://runbooks.example/hypic/"}
dashboards: {namespace: grafana, annotations: {folder: hypic}}
"""
