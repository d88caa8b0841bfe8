"""A dashboard's panels as one picture, laid out as Grafana does, without Grafana: SVG, made a PNG by Chromium."""

import html
import math
import pathlib
import subprocess
import tempfile
import time

COLOURS = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#b877d9", "#f2495c", "#8ab8ff", "#fade2a", "#96d98d", "#ffb357"]
# Of a cell of Grafana's grid of 24 columns, and the space between panels, in pixels.
CELL_WIDTH, CELL_HEIGHT, GAP = 58, 34, 6
LEGEND_ROW, SHOWN_IN_LEGEND = 15, 6


def number(value, unit):
    """A value in its unit, short."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        for limit, scale, name in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
            if abs(value) < limit and value:
                return f"{value * scale:.3g} {name}"
        return f"{value:.3g} s"
    if unit in ("bytes", "Bps"):
        power = min(4, int(math.log(abs(value), 1024))) if abs(value) >= 1 else 0
        name = ["B", "KiB", "MiB", "GiB", "TiB"][power]
        return f"{value / 1024**power:.3g} {name}{'/s' if unit == 'Bps' else ''}"
    for scale, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{name}"
    return f"{value:.3g}{' /s' if unit in ('ops', 'reqps') else ''}"


def ticks(top, unit):
    """Round values from 0 to at least `top`."""
    if unit in ("bytes", "Bps") and top >= 1024:
        scale = 1024 ** int(math.log(top, 1024))
        return [scale * mark for mark in ticks(top / scale, "short")]
    step = 10 ** math.floor(math.log10(top / 4))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if step * factor * 4 >= top * 0.999)
    return [step * index for index in range(5)]


def text(x, y, words, size=12, colour="#9fa7b3", anchor="start"):
    """A line of text."""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{html.escape(words)}</text>'


def stat(series, unit, width, height):
    """The last value of each series, large."""
    size = 34 if len(series) == 1 else 24
    parts = []
    for index, (name, points) in enumerate(series):
        x = width * (index + 0.5) / len(series)
        parts.append(text(x, height * 0.62, number(points[-1][1], unit), size, COLOURS[0], "middle"))
        parts.append(text(x, height * 0.85, name, 12, anchor="middle"))
    return "".join(parts)


def lines(series, unit, stacked, span, width, height):
    """Lines over time with axes and a legend of the largest."""
    series = sorted(series, key=lambda one: -max(value for _, value in one[1]))
    legend = [f"{name or 'value'}: {number(points[-1][1], unit)}" for name, points in series]
    if stacked:
        series = stack(series)
    rows = min(len(series), SHOWN_IN_LEGEND)
    left, right, head, foot = 70, width - 10, 30, height - 26 - LEGEND_ROW * ((rows + 1) // 2)
    first, last = span
    marks = ticks(max(max(value for _, value in points) for _, points in series) or 1, unit)

    def across(at):
        return left + (right - left) * (at - first) / (last - first)

    def up(value):
        return foot - (foot - head) * value / marks[-1]

    parts = []
    for mark in marks:
        parts.append(f'<line x1="{left}" x2="{right}" y1="{up(mark):.1f}" y2="{up(mark):.1f}" stroke="#2c3235"/>')
        parts.append(text(left - 6, up(mark) + 4, number(mark, unit), 11, anchor="end"))
    for part in range(5):
        at = first + (last - first) * part / 4
        anchor = {0: "start", 4: "end"}.get(part, "middle")
        parts.append(text(across(at), foot + 14, time.strftime("%H:%M:%S", time.gmtime(at)), 11, anchor=anchor))
    for index, (_, points) in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if index < rows:
            more = f" and {len(series) - rows} more" if index == rows - 1 and len(series) > rows else ""
            x, y = left + (right - left) / 2 * (index % 2), foot + 32 + LEGEND_ROW * (index // 2)
            parts.append(f'<rect x="{x:.0f}" y="{y - 8:.0f}" width="10" height="3" fill="{colour}"/>')
            parts.append(text(x + 15, y - 2, legend[index] + more, 11))
    return "".join(parts)


def stack(series):
    """Each series on top of those before it."""
    height, result = {}, []
    for name, points in series:
        raised = []
        for at, value in points:
            height[at] = height.get(at, 0.0) + value
            raised.append((at, height[at]))
        result.append((name, raised))
    return result


def panel_svg(panel, series, span):
    """One panel in its place."""
    place = panel["gridPos"]
    width, height = place["w"] * CELL_WIDTH - GAP, place["h"] * CELL_HEIGHT - GAP
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    unit = defaults.get("unit", "short")
    parts = [f'<g transform="translate({place["x"] * CELL_WIDTH},{place["y"] * CELL_HEIGHT})">']
    if panel["type"] == "row":
        return parts[0] + text(0, 22, panel["title"], 15, "#d8d9da") + "</g>"
    parts.append(f'<rect width="{width}" height="{height}" rx="3" fill="#181b1f" stroke="#2c3235"/>')
    parts.append(text(10, 19, panel["title"], 13, "#d8d9da"))
    if not series:
        parts.append(text(width / 2, height / 2, "no data", 13, "#f2495c", "middle"))
    elif panel["type"] == "stat":
        parts.append(stat(series, unit, width, height))
    else:
        stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
        parts.append(lines(series, unit, stacked, span, width, height))
    return "".join(parts) + "</g>"


def picture(dashboard, shown, file):
    """Writes the PNG; `shown` has [(legend, [(seconds, value)])] by panel id."""
    panels = dashboard["panels"]
    width = 24 * CELL_WIDTH + 20
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * CELL_HEIGHT + 56
    times = [at for series in shown.values() for _, points in series for at, _ in (points[0], points[-1])]
    span = (min(times), max(max(times), min(times) + 1)) if times else (0, 1)
    body = "".join(panel_svg(panel, shown.get(panel["id"], []), span) for panel in panels)
    page = (
        '<!doctype html><meta charset="utf-8"><style>body{margin:0;background:#111217}text{font-family:sans-serif}</style>'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        f'{text(12, 28, dashboard["title"], 18, "#d8d9da")}<g transform="translate(12,44)">{body}</g></svg>'
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "page.html"
        source.write_text(page)
        subprocess.run(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            + [f"--user-data-dir={folder}/profile", f"--window-size={width},{height}"]
            + [f"--screenshot={file.resolve()}", source.as_uri()],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    if not file.exists():
        raise RuntimeError(f"chromium wrote no {file}")
