"""Asks a Prometheus every query of the dashboards and of the rules. Fails when one is wrong or gives no data.

An alert may be silent, but every metric it names must be there."""

import argparse
import json
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

import draw

CHART = pathlib.Path(__file__).resolve().parents[2] / "charts/hypic"
METRIC = re.compile(r"\bhypic_[a-z0-9_]+(?::[a-z0-9_]+)*")


class Prometheus:
    """One server, and the span of time that is looked at."""

    def __init__(self, address, span):
        self.address = address.rstrip("/")
        self.span = span
        self.end = time.time()
        self.step = max(1, span // 240)

    def get(self, path, **parameters):
        """The data of an answer; ValueError with the server's words otherwise."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error).get("error", error.reason)) from error
        except urllib.error.URLError as error:
            sys.exit(f"{self.address}: {error.reason}")

    def range(self, expression):
        """[(labels, [(seconds, number)])]; what is not a number is left out."""
        data = self.get(
            "query_range", query=expression, start=self.end - self.span, end=self.end, step=self.step
        )
        series = []
        for one in data["result"]:
            points = [(t, float(v)) for t, v in one["values"] if v not in ("NaN", "+Inf", "-Inf")]
            if points:
                series.append((one["metric"], points))
        return series


def variables(step):
    """What Grafana would put in for its variables: everything."""
    return {
        "namespace": ".*",
        "cluster": ".*",
        # Four scrapes of 5 s at least, as Grafana reckons it.
        "__rate_interval": f"{max(30, step)}s",
    }


def filled(expression, values):
    """The query with its variables put in; a variable that nobody knows stays and is refused."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], found[0]), expression)


class Report:
    """One line per query; remembers what failed."""

    def __init__(self):
        self.faults = 0

    def line(self, what, fault=None, detail=""):
        self.faults += fault is not None
        print(f"{'ok' if fault is None else 'FAULT':5} {what} {fault or detail}", flush=True)


def ask_panels(prometheus, report, excused):
    """Every target of every panel. Returns what was drawn: {file: (dashboard, {panel id: [(legend, points)]})}."""
    drawn = {}
    for file in sorted((CHART / "dashboards").glob("*.json")):
        dashboard = json.loads(file.read_text())
        shown = {}
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                what = f"{file.stem}: {panel['title']} [{target['refId']}]"
                expression = filled(target["expr"], variables(prometheus.step))
                try:
                    series = prometheus.range(expression)
                except ValueError as error:
                    report.line(what, str(error))
                    continue
                fault = None if series or excused(expression) else f"no data: {expression}"
                report.line(what, fault, f"{len(series)} series")
                legend = target.get("legendFormat", "")
                for labels, points in series:
                    name = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda m, known=labels: known.get(m[1], ""), legend)
                    shown.setdefault(panel["id"], []).append((name, points))
        drawn[file.stem] = (dashboard, shown)
    return drawn


def ask_rules(prometheus, report, excused, rules):
    """Every rule's expression, every metric that it names, and that the server has taken it."""
    loaded = {
        rule["name"]: rule
        for group in prometheus.get("rules")["groups"]
        for rule in group["rules"]
    }
    for rule in rules:
        name = rule.get("record") or rule["alert"]
        if excused(rule["expr"]):
            continue
        taken = loaded.get(name)
        if taken is None:
            report.line(name, "the server has not loaded it")
        elif taken["health"] != "ok":
            report.line(name, f"{taken['health']}: {taken.get('lastError', '')}")
        try:
            series = prometheus.range(rule["expr"])
            missing = [
                metric
                for metric in sorted(set(METRIC.findall(rule["expr"])) - {"hypic_cluster"})
                if not excused(metric) and not prometheus.range(metric)
            ]
        except ValueError as error:
            report.line(name, str(error))
            continue
        if missing:
            report.line(name, f"no such series: {', '.join(missing)}")
        elif not series and "record" in rule:
            report.line(name, f"no data: {rule['expr']}")
        else:
            state = "" if "record" in rule else (", fires" if series else ", silent")
            report.line(name, None, f"{len(series)} series{state}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prometheus", help="address of a Prometheus that has loaded the chart's rules")
    parser.add_argument("--span", type=int, default=900, help="seconds to look back (%(default)s)")
    parser.add_argument("--draw", type=pathlib.Path, help="folder for one picture per dashboard")
    parser.add_argument(
        "--without", action="append", default=[], metavar="PREFIX",
        help="metrics that this fleet has not, such as hypic_operator_ where no operator runs",
    )
    args = parser.parse_args()
    rules = yaml.safe_load((CHART / "rules/hypic.yaml").read_text())
    rules = [rule for group in rules["groups"] for rule in group["rules"]]
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}

    def excused(expression):
        """Whether it needs a metric that is not there, itself or through what is recorded."""
        return any(
            name.startswith(tuple(args.without)) or excused(recorded.get(name, ""))
            for name in METRIC.findall(expression)
        )

    prometheus, report = Prometheus(args.prometheus, args.span), Report()
    drawn = ask_panels(prometheus, report, excused)
    ask_rules(prometheus, report, excused, rules)
    if args.draw:
        for name, (dashboard, shown) in drawn.items():
            draw.picture(dashboard, shown, args.draw / f"{name}.png")
    if report.faults:
        sys.exit(f"{report.faults} queries failed")


if __name__ == "__main__":
    main()
