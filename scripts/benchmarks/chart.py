"""Pictures of a run as SVG, one for each bench: how many times as fast as each peer the project is, on a logarithmic scale.

A peer has the same color in every picture. The picture itself has colors for light and dark pages (`prefers-color-scheme`); where that is not
known, light. Nothing but text, rectangles and lines, so that it is small and can be read as a file.
"""

from __future__ import annotations

import math
from typing import NamedTuple
from xml.sax.saxutils import escape

from scripts.benchmarks.measure import Measurement

_LABEL, _BAR, _ROW, _TOP, _WIDTH = 170, 14, 19, 64, 860
_LIGHT = (
    *("#2563a8", "#b3541e", "#3a7d44", "#7b4fa3", "#a8922a", "#2a8c8c", "#a83256", "#606c76"),
    *("#1b9e77", "#d95f8c", "#8c6d31", "#35b6e8"),
)
_DARK = (
    *("#6ea8e8", "#e8965f", "#7cc488", "#b794e0", "#dcc75f", "#66c9c9", "#e87fa0", "#a7b0b8"),
    *("#5fd9b4", "#f5a8c4", "#c9a86a", "#bfe9ff"),
)


class Bar(NamedTuple):
    """One bar: our median over the peer's, in a case."""

    bench: str
    case: str
    peer: str
    ratio: float


def bars(measurements: list[Measurement], subject: str = "shmstore") -> list[Bar]:
    """Our rates over the peers' in the same case, in the order measured; what is not a rate, or has no peer, is left out."""
    rates = [m for m in measurements if m.metric == "throughput" and m.median > 0]
    ours = {(m.bench, m.case): m.median for m in rates if m.subject == subject}
    return [
        Bar(m.bench, m.case, m.subject, ours[m.bench, m.case] / m.median)
        for m in rates
        if not m.subject.startswith(subject) and (m.bench, m.case) in ours
    ]


def pictures(measurements: list[Measurement], machine: str) -> dict[str, str]:
    """Return a picture for each bench that has peers, by its name. Raises ValueError where there is nothing to compare."""
    drawn: dict[str, list[Bar]] = {}
    for bar in bars(measurements):
        drawn.setdefault(bar.bench, []).append(bar)
    if not drawn:
        raise ValueError("no case of this run has a peer: measure store, decode, pipeline or serve")
    colors: dict[str, int] = {}
    found = {}
    for bench, shown in drawn.items():
        for peer in (peers := list(dict.fromkeys(bar.peer for bar in shown))):
            if peer not in colors:
                here = {colors[other] for other in peers if other in colors}
                free = [color for color in range(len(_LIGHT)) if color not in colors.values()]
                free += [color for color in range(len(_LIGHT)) if color not in here]
                colors[peer] = (free or [len(colors) % len(_LIGHT)])[0]
        found[bench] = _svg(bench, shown, {peer: colors[peer] for peer in peers}, machine)
    return found


def _svg(bench: str, drawn: list[Bar], colors: dict[str, int], machine: str) -> str:
    low = math.floor(math.log10(min(1.0, *(bar.ratio for bar in drawn))))
    high = max(1, math.ceil(math.log10(max(bar.ratio for bar in drawn))))
    span = _WIDTH - _LABEL - 70

    def x(ratio: float) -> float:
        return _LABEL + span * (math.log10(ratio) - low) / (high - low)

    body, y = [], _TOP + 16 * ((len(colors) + 3) // 4)
    first = y
    for case in dict.fromkeys(bar.case for bar in drawn):
        group = [bar for bar in drawn if bar.case == case]
        body.append(f'<text class="case" x="{_LABEL - 8}" y="{y + _ROW * len(group) / 2 + 4:.0f}">{escape(case)}</text>')
        for bar in group:
            start, end = sorted((x(1), x(bar.ratio)))
            body.append(
                f'<rect class="c{colors[bar.peer]}" x="{start:.1f}" y="{y}" width="{max(end - start, 1):.1f}" height="{_BAR}">'
                f"<title>{escape(bar.peer)}</title></rect>"
            )
            body.append(f'<text x="{max(end, x(1)) + 4:.1f}" y="{y + 11}">{_times(bar.ratio)}</text>')
            y += _ROW
        y += 8
    grid = []
    for power in range(low, high + 1):
        at = x(10.0**power)
        grid.append(f'<line class="{"one" if power == 0 else "grid"}" x1="{at:.1f}" y1="{first - 6}" x2="{at:.1f}" y2="{y}"/>')
        grid.append(f'<text class="scale" x="{at:.1f}" y="{y + 14}">{_times(10.0**power)}</text>')
    legend = []
    for i, (peer, color) in enumerate(colors.items()):
        at, line = 12 + 212 * (i % 4), 40 + 16 * (i // 4)
        legend.append(f'<rect class="c{color}" x="{at}" y="{line}" width="10" height="10"/>')
        legend.append(f'<text x="{at + 15}" y="{line + 9}">{escape(peer)}</text>')
    style = "".join(f".c{i}{{fill:{color}}}" for i, color in enumerate(_LIGHT))
    dark = "".join(f".c{i}{{fill:{color}}}" for i, color in enumerate(_DARK))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 42}" width="{_WIDTH}" height="{y + 42}" '
            'font-family="system-ui, sans-serif" font-size="12">',
            "<style>text{fill:#24292f}.case,.scale{fill:#57606a}.case{text-anchor:end}.scale{text-anchor:middle;font-size:11px}"
            ".title{font-size:15px;font-weight:600}.page{fill:#ffffff}.grid{stroke:#d0d7de}.one{stroke:#57606a}"
            f"{style}@media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.case,.scale{{fill:#9da7b1}}.page{{fill:#0d1117}}"
            f".grid{{stroke:#30363d}}.one{{stroke:#9da7b1}}{dark}}}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{y + 42}"/>',
            f'<text class="title" x="12" y="24">{escape(bench)}: speed of shmstore, as a multiple of each peer (log scale)</text>',
            *legend,
            *grid,
            *body,
            f'<text class="scale" style="text-anchor:start" x="12" y="{y + 34}">{escape(machine)}; scripts/bench --chart</text>',
            "</svg>",
            "",
        ]
    )


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"
