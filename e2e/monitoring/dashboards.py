"""The Grafana dashboards of the chart. Without --write: fails when the committed files differ from what this writes."""

import pathlib
import sys

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as StatPanel
from grafana_foundation_sdk.builders.timeseries import Panel as TimeseriesPanel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import GraphDrawStyle, StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh
from grafana_foundation_sdk.builders.common import StackingConfig

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "charts/hypic/dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
# Series of routers and agents, and of the operator, which names the HypicCluster itself.
FLEET = 'namespace=~"$namespace", hypic_cluster=~"$cluster"'
OPERATOR = 'namespace=~"$namespace", cluster=~"$cluster"'
# One that lost the Lease may still show what it last knew.
LEADS = "and on (job, instance) hypic_operator_leader == 1"


def fleet(metric, *labels):
    """A selector of a router's or agent's metric."""
    return f"{metric}{{{', '.join([FLEET, *labels])}}}"


def rate(metric, *labels, by=""):
    """Sum of rates, one series per value of `by`."""
    return f"sum by ({by}) (rate({fleet(metric, *labels)}[$__rate_interval]))"


def quantile(q, metric, by=""):
    """A quantile of a histogram."""
    return f"histogram_quantile({q}, {rate(metric + '_bucket', by=', '.join(filter(None, ['le', by])))})"


def fold(how, metric, *labels, by=""):
    """Gauges of routers or agents, folded by `how`."""
    return f"{how} by ({by}) ({fleet(metric, *labels)})"


def total(metric, by=""):
    """Sum of gauges."""
    return fold("sum", metric, by=by)


def operator(metric, fold, by, *labels):
    """The leading operator's gauges."""
    return f"{fold} by ({by}) ({metric}{{{', '.join([OPERATOR, *labels])}}} {LEADS})"


def tiers(what):
    """A gauge that each tier has under its own name."""
    selector = f'{{__name__=~"hypic_agent_store_[a-z]+_{what}", {FLEET}}}'
    named = f'label_replace({selector}, "tier", "$1", "__name__", "hypic_agent_store_([a-z]+)_{what}")'
    return f"sum by (tier) ({named})"


def queries(panel, *targets):
    """Adds (expression, legend) pairs."""
    for number, (expression, legend) in enumerate(targets):
        target = Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number))
        panel = panel.with_target(target)
    return panel


def stat(title, unit, help_text, *targets):
    """A number."""
    panel = StatPanel().title(title).description(help_text).unit(unit).datasource(SOURCE).height(4).span(4)
    return queries(panel, *targets)


def lines(title, unit, help_text, *targets, stack=False, span=12):
    """Lines over time."""
    panel = TimeseriesPanel().title(title).description(help_text).unit(unit).datasource(SOURCE)
    panel = panel.height(8).span(span).min(0).line_width(1).draw_style(GraphDrawStyle.LINE)
    if stack:
        panel = panel.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(30)
    return queries(panel, *targets)


def variable(name, label, query):
    """A variable with several values; all of them also covers series without the label."""
    made = build.QueryVariable(name).label(label).query(query).datasource(SOURCE)
    made = made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(True).include_all(True)
    return made.all_value(".*")


def dashboard(title, uid, rows):
    """Rows of panels under the three variables."""
    made = build.Dashboard(title).uid(uid).tags(["hypic"]).refresh("30s").time("now-1h", "now").readonly()
    made = made.with_variable(build.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    made = made.with_variable(
        variable("namespace", "Namespace", "label_values(hypic_router_fleet_epoch, namespace)")
    )
    made = made.with_variable(
        variable(
            "cluster",
            "HypicCluster",
            'label_values(hypic_router_fleet_epoch{namespace=~"$namespace"}, hypic_cluster)',
        )
    )
    for name, panels in rows:
        made = made.with_row(build.Row(name))
        for panel in panels:
            made = made.with_panel(panel)
    made = made.build()
    # Numbers that stay, for links to a panel.
    for number, panel in enumerate(made.panels, start=1):
        panel.id_val = number
    return made


ENDPOINTS = 'endpoint=~"chat_completions|completions"'
STATION_HISTOGRAMS = {
    "admit": "hypic_router_admit_seconds",
    "segment": "hypic_router_segment_seconds",
    "lookup": "hypic_router_lookup_seconds",
    "schedule": "hypic_router_schedule_seconds",
}


def share(part, whole):
    """A ratio that is 0 without traffic."""
    return f"{part} / ({whole} > 0) or {whole} * 0"


def failed_share():
    cut = rate("hypic_router_generate_cut_total")
    failed = rate("hypic_router_http_requests_total", ENDPOINTS, 'status=~"5.."')
    asked = rate("hypic_router_http_requests_total", ENDPOINTS)
    return share(f"({failed} + {cut})", f"({asked} + {cut})")


def requests():
    """Fleet and request path."""
    return dashboard(
        "hypic / fleet and request path",
        "hypic-requests",
        [
            (
                "Fleet",
                [
                    stat(
                        "Clusters Ready",
                        "short",
                        "HypicClusters whose condition Ready is true, of all.",
                        (operator("hypic_operator_cluster_ready", "sum", ""), "ready"),
                        (operator("hypic_operator_cluster_ready", "count", ""), "all"),
                    ),
                    stat(
                        "Clusters Degraded",
                        "short",
                        "HypicClusters that serve, but not as they should.",
                        (operator("hypic_operator_cluster_degraded", "sum", ""), ""),
                    ),
                    stat(
                        "Agents usable",
                        "short",
                        "As the router that sees fewest of them does, of those in the topology.",
                        (fold("min", "hypic_router_fleet_agents", 'state="usable"'), "usable"),
                        (fold("max", "hypic_router_fleet_agents", 'state="known"'), "known"),
                    ),
                    stat(
                        "Requests",
                        "reqps",
                        "Answered completions and chat completions.",
                        (rate("hypic_router_http_requests_total", ENDPOINTS), ""),
                    ),
                    stat(
                        "Failed",
                        "percentunit",
                        "Share of requests with a 5xx or a cut answer.",
                        (failed_share(), ""),
                    ),
                    stat(
                        "Answer tokens",
                        "short",
                        "Tokens of answers in a second.",
                        (rate("hypic_router_generate_tokens_total"), ""),
                    ),
                ],
            ),
            (
                "Requests",
                [
                    lines(
                        "Requests by status",
                        "reqps",
                        "Completions and chat completions by HTTP status.",
                        (rate("hypic_router_http_requests_total", ENDPOINTS, by="status"), "{{status}}"),
                        stack=True,
                    ),
                    lines(
                        "Cut, moved and abandoned",
                        "reqps",
                        "Answers that ended early by reason; requests begun again on another agent; clients that left.",
                        (rate("hypic_router_generate_cut_total", by="reason"), "cut: {{reason}}"),
                        (rate("hypic_router_generate_moved_total", by="moment"), "moved {{moment}}"),
                        (rate("hypic_router_generate_abandoned_total"), "abandoned"),
                    ),
                    lines(
                        "Time to the first token",
                        "s",
                        "From arrival to the first token, by mode. Modes without requests have no line.",
                        *(
                            (quantile(q, "hypic_router_first_token_seconds", by="mode"), f"{{{{mode}}}} p{p}")
                            for q, p in ((0.5, 50), (0.95, 95), (0.99, 99))
                        ),
                    ),
                    lines(
                        "Gap between tokens",
                        "s",
                        "Between two messages of tokens of one request.",
                        (quantile(0.5, "hypic_router_token_gap_seconds"), "p50"),
                        (quantile(0.99, "hypic_router_token_gap_seconds"), "p99"),
                    ),
                    lines(
                        "Requests at the routers",
                        "short",
                        "Those that run and those that wait for their turn.",
                        (total("hypic_router_admit_running"), "running"),
                        (total("hypic_router_admit_queued"), "queued"),
                    ),
                    lines(
                        "Oldest request that waits",
                        "s",
                        "0 when none waits.",
                        (fold("max", "hypic_router_admit_oldest_seconds", by="pod"), "{{pod}}"),
                    ),
                    lines(
                        "Stations of the router",
                        "s",
                        "p95 of the time in each.",
                        *((quantile(0.95, metric), name) for name, metric in STATION_HISTOGRAMS.items()),
                    ),
                    lines(
                        "Answer tokens",
                        "short",
                        "Tokens of answers in a second, by router.",
                        (rate("hypic_router_generate_tokens_total", by="pod"), "{{pod}}"),
                        stack=True,
                    ),
                ],
            ),
            (
                "Agents",
                [
                    lines(
                        "Sequences",
                        "short",
                        "Sequences that hold a state slot, and those that wait for one.",
                        (total("hypic_agent_decode_running", by="pod"), "{{pod}} running"),
                        (total("hypic_agent_decode_queued", by="pod"), "{{pod}} queued"),
                    ),
                    lines(
                        "Rows computed",
                        "short",
                        "Rows through the model in a second, by what they were for.",
                        (rate("hypic_agent_decode_rows_total"), "decode"),
                        (rate("hypic_agent_compose_live_rows_total"), "prompt, in context"),
                        (rate("hypic_agent_compose_rows_total"), "prompt, composed"),
                        (rate("hypic_agent_scatter_build_rows_total"), "build"),
                        stack=True,
                    ),
                    lines(
                        "Slots and pages in use",
                        "percentunit",
                        "Of each agent's state slots and KV pages.",
                        (
                            f"1 - {total('hypic_agent_decode_slots_free', 'pod')} / {total('hypic_agent_decode_slots', 'pod')}",
                            "{{pod}} slots",
                        ),
                        (
                            f"1 - {total('hypic_agent_decode_pages_free', 'pod')} / {total('hypic_agent_decode_pages', 'pod')}",
                            "{{pod}} pages",
                        ),
                    ),
                    lines(
                        "Preempted and cancelled",
                        "ops",
                        "Sequences computed again for want of pages, and those that nobody waits for any more.",
                        (rate("hypic_agent_decode_preempted_total", by="pod"), "{{pod}} preempted"),
                        (rate("hypic_agent_decode_cancelled_total", by="pod"), "{{pod}} cancelled"),
                    ),
                    lines(
                        "Memory of GPUs",
                        "bytes",
                        "Of the GPUs that compute requests: in use, and what the driver holds for it, which grows to the most that was ever used.",
                        (total("hypic_agent_device_used_bytes", by="pod"), "{{pod}} used"),
                        (total("hypic_agent_device_held_bytes", by="pod"), "{{pod}} held"),
                        span=24,
                    ),
                ],
            ),
            (
                "Control plane",
                [
                    lines(
                        "Epoch of the topology",
                        "short",
                        "What the operator has made and what each part has taken.",
                        (
                            operator("hypic_operator_topology_epoch", "max", "namespace, cluster"),
                            "operator: {{namespace}}/{{cluster}}",
                        ),
                        (fold("min", "hypic_router_fleet_epoch"), "oldest of the routers"),
                        (fold("min", "hypic_agent_lookup_epoch"), "oldest of the agents"),
                        span=8,
                    ),
                    lines(
                        "Reconciles",
                        "ops",
                        "Rounds of the operator, by kind and result.",
                        (
                            "sum by (kind, result) (rate(hypic_operator_reconcile_total[$__rate_interval]))",
                            "{{kind}} {{result}}",
                        ),
                        (
                            "sum by (result) (rate(hypic_operator_pushes_total[$__rate_interval]))",
                            "push {{result}}",
                        ),
                        span=8,
                    ),
                    lines(
                        "Time of a reconcile",
                        "s",
                        "p95 by kind.",
                        (
                            "histogram_quantile(0.95, sum by (le, kind) "
                            "(rate(hypic_operator_reconcile_seconds_bucket[$__rate_interval])))",
                            "{{kind}}",
                        ),
                        span=8,
                    ),
                ],
            ),
        ],
    )


def cache():
    """Cache, index and scatter."""
    tokens = "hypic_router_segment_tokens_total"
    looked_up = "hypic_router_lookup_tokens_total"
    pool = "namespace, cluster, pool"
    return dashboard(
        "hypic / cache, index and scatter",
        "hypic-cache",
        [
            (
                "Use of the cache",
                [
                    stat(
                        "Reused",
                        "percentunit",
                        "Share of prompt tokens that were not computed: exact snapshots and bodies of tuples.",
                        (share(rate(tokens, 'outcome=~"exact|hit"'), rate(tokens)), ""),
                    ),
                    stat(
                        "Cold share",
                        "percentunit",
                        "Of the tokens of segments that were asked for, those without a usable tuple anywhere.",
                        (share(rate(looked_up, 'outcome="cold"'), rate(looked_up)), ""),
                    ),
                    stat(
                        "Cold first token",
                        "s",
                        "p95 of the time to the first token of requests with a cold segment.",
                        (quantile(0.95, "hypic_router_cold_first_token_seconds"), ""),
                    ),
                    stat(
                        "Tuples kept",
                        "short",
                        "In all tiers of all agents; copies count each.",
                        (f"sum({tiers('tuples')})", ""),
                    ),
                    stat(
                        "Partial holders",
                        "short",
                        "Holders of which a slot owner does not know everything yet.",
                        (total("hypic_agent_lookup_holders_partial"), ""),
                    ),
                    stat(
                        "Damaged tuples",
                        "short",
                        "Dropped for a wrong checksum in the last hour.",
                        (
                            f"sum(increase({fleet('hypic_agent_store_corrupt_total')}[1h]))"
                            f" + sum(increase({fleet('hypic_agent_transport_pull_checksum_failures_total')}[1h]))",
                            "",
                        ),
                    ),
                    lines(
                        "Prompt tokens by outcome",
                        "short",
                        "In a second: exact = from a snapshot, hit = body of a tuple, built = body built for this prompt, "
                        "seam = recomputed at a join, live = never cached.",
                        (rate(tokens, by="outcome"), "{{outcome}}"),
                        stack=True,
                    ),
                    lines(
                        "Segments by outcome",
                        "ops",
                        "In a second.",
                        (rate("hypic_router_segment_segments_total", by="outcome"), "{{outcome}}"),
                        stack=True,
                    ),
                    lines(
                        "Cold and reused shares",
                        "percentunit",
                        "As in the numbers above, over time.",
                        (share(rate(looked_up, 'outcome="cold"'), rate(looked_up)), "cold"),
                        (share(rate(tokens, 'outcome=~"exact|hit"'), rate(tokens)), "reused"),
                    ),
                    lines(
                        "Why segments were built",
                        "ops",
                        "In a second, by reason.",
                        (rate("hypic_router_segment_cold_total", by="reason"), "{{reason}}"),
                        stack=True,
                    ),
                ],
            ),
            (
                "Tiers",
                [
                    lines(
                        "Bytes",
                        "bytes",
                        "Used of each tier, and their caps.",
                        (tiers("bytes"), "{{tier}}"),
                        (tiers("cap_bytes"), "{{tier}} cap"),
                    ),
                    lines("Tuples", "short", "In each tier.", (tiers("tuples"), "{{tier}}")),
                    lines(
                        "Faults of the store",
                        "ops",
                        "In a second.",
                        *(
                            (rate(f"hypic_agent_store_{fault}_total"), fault.replace("_", " "))
                            for fault in (
                                "corrupt",
                                "mismatch",
                                "unreadable",
                                "disk_full",
                                "write_failed",
                                "remove_failed",
                            )
                        ),
                    ),
                    lines(
                        "Heads that store a transition",
                        "percentunit",
                        "Share of built heads with a live T, by agent: it decides what a segment weighs.",
                        (fold("max", "hypic_agent_compose_live_head_share", by="pod"), "{{pod}}"),
                    ),
                ],
            ),
            (
                "Index",
                [
                    lines(
                        "Keys and claims",
                        "short",
                        "In the owned slots; two replicas of each.",
                        (total("hypic_agent_lookup_keys", by="pod"), "{{pod}} keys"),
                        (total("hypic_agent_lookup_claims", by="pod"), "{{pod}} claims"),
                        span=8,
                    ),
                    lines(
                        "Holders",
                        "short",
                        "As the slot owners see them, and builds that they have granted.",
                        (total("hypic_agent_lookup_holders_whole"), "whole"),
                        (total("hypic_agent_lookup_holders_partial"), "partial"),
                        (total("hypic_agent_lookup_grants"), "grants"),
                        span=8,
                    ),
                    lines(
                        "Questions that failed",
                        "ops",
                        "Of routers by reason, and claims that found no room.",
                        (rate("hypic_router_lookup_failures_total", by="reason"), "{{reason}}"),
                        (rate("hypic_agent_lookup_refused_claims_total"), "refused claims"),
                        span=8,
                    ),
                ],
            ),
            (
                "Scatter",
                [
                    lines(
                        "Scatter workers",
                        "short",
                        "Wanted by the operator and ready.",
                        (
                            operator("hypic_operator_scatter_replicas", "max", f"{pool}, state"),
                            "{{namespace}}/{{cluster}} {{pool}} {{state}}",
                        ),
                        (
                            operator("hypic_operator_scatter_frozen", "max", pool),
                            "{{namespace}}/{{cluster}} {{pool}} frozen",
                        ),
                    ),
                    lines(
                        "Demand",
                        "short",
                        "Cold tokens in a second that the operator scales on.",
                        (
                            operator("hypic_operator_scatter_demand_tokens_per_second", "max", pool),
                            "{{namespace}}/{{cluster}} {{pool}}",
                        ),
                    ),
                    lines(
                        "Cold share that the operator sees",
                        "percentunit",
                        "Below the pool's gate nothing is scaled up.",
                        (
                            operator("hypic_operator_scatter_cold_share_ratio", "max", pool),
                            "{{namespace}}/{{cluster}} {{pool}}",
                        ),
                    ),
                    lines(
                        "Builds",
                        "short",
                        "Builds that run or wait, and tuples built in a second.",
                        (total("hypic_agent_scatter_builds", by="component"), "{{component}} under way"),
                        (rate("hypic_agent_scatter_built_total", by="component"), "{{component}} built /s"),
                    ),
                    lines(
                        "Bytes between agents",
                        "Bps",
                        "Tensor bytes in a second.",
                        (rate("hypic_agent_transport_pull_bytes_total", by="pod"), "{{pod}} pulls"),
                        (rate("hypic_agent_transport_serve_bytes_total", by="pod"), "{{pod}} serves"),
                    ),
                    lines(
                        "Sources that failed",
                        "ops",
                        "In a second, by reason; the segment may still have come from another one.",
                        (rate("hypic_agent_scatter_failures_total", by="reason"), "{{reason}}"),
                    ),
                ],
            ),
        ],
    )


def main():
    stale = []
    for made in (requests(), cache()):
        file = FOLDER / f"{made.uid.removeprefix('hypic-')}.json"
        text = JSONEncoder(sort_keys=True, indent=2).encode(made) + "\n"
        if "--write" in sys.argv[1:]:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            stale.append(file.name)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what e2e/monitoring/dashboards.py writes; run 'cargo xtask charts --write'")


if __name__ == "__main__":
    main()
