"""Draw the figures that benchmarks/README.md publishes: docs/images/beside-kafka.svg.

    python -m benchmarks.peers.draw_published

beside_kafka.json holds them: times as fast as Kafka as it comes, and as Kafka that fsyncs what it
acknowledges;
median, least and most of the repetitions. A test compares them with the text.
"""

import json
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
PUBLISHED = Path(__file__).with_name("beside_kafka.json")
PICTURE = PROJECT / "docs" / "images" / "beside-kafka.svg"
SERIES = {
    "kafka": ("than Kafka as it comes, which acknowledges before fsync", "#4c78a8", "o"),
    "kafka that fsyncs": ("than Kafka with flush.messages=1, as durable as sparklog", "#54a24b", "s"),
}
TICKS = (0.5, 1, 2, 4, 8, 16)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """One line for each work, a point with its range for each contender, on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "sparklog"  # the same file for the same figures
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.34 * len(rows) + 1.3))
    for name, (label, colour, marker) in SERIES.items():
        places = [place for place, row in enumerate(rows) if name in row]
        medians, least, most = zip(*(rows[place][name] for place in places), strict=True)
        below = [median - low for median, low in zip(medians, least, strict=True)]
        above = [high - median for median, high in zip(medians, most, strict=True)]
        axes.errorbar(medians, places, xerr=(below, above), fmt=marker, color=colour, label=label, capsize=2)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(TICKS, [f"{tick:g}x" for tick in TICKS])
    axes.set_yticks(range(len(rows)), [row["work"] for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("times as fast (left of 1x: slower); median and range of the repetitions")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=1, frameon=False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(json.loads(PUBLISHED.read_text(encoding="ascii")), PICTURE)
