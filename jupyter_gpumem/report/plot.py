"""Drawings of results with matplotlib, which is imported when one is asked for and not before."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from jupyter_gpumem.units import GiB, MiB

_COLOURS = {"reserved": "#d9d9d9", "peak": "#e69f00", "level": "#0072b2"}


_MOST_TICKS = 30


def plot_steps(rows: list[dict[str, Any]], ax: Any = None) -> Any:
    """Draw what each step of a loop needed, reserved and left, one group for each device.

    Args:
        rows: flat dicts as `Tracker.rows` returns them.
        ax: the axes to draw into; a new figure if `None`.

    Returns:
        The axes.
    """
    import matplotlib.pyplot as plt

    width = min(14.0, max(5.0, 1.5 + 0.45 * len(rows)))
    axes = plt.subplots(figsize=(width, 3.2), layout="constrained")[1] if ax is None else ax
    highest = max((row[key] or 0 for row in rows for key in ("peak_reserved", "peak_allocated")), default=0)
    unit, name = (GiB, "GiB") if highest >= GiB else (MiB, "MiB")
    by_device: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_device[row["device"]].append(row)
    ticks, labels, position = [], [], 0
    for device, steps in by_device.items():
        for row in steps:
            bars = (
                ("reserved", row["peak_reserved"] or row["reserved"], 0.8),
                ("peak", row["peak_allocated"], 0.6),
                ("level", row["allocated"], 0.3),
            )
            for key, size, width in bars:
                axes.bar(position, (size or 0) / unit, width, color=_COLOURS[key], linewidth=0)
            ticks.append(position)
            labels.append(row["step"] if len(by_device) == 1 else f"{device}\n{row['step']}")
            position += 1
        position += 1
    names = ("peak reserved", "peak allocated", "allocated at the end")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in _COLOURS.values()]
    axes.legend(handles, names, frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(0, 1.16), ncols=3)
    every = max(1, -(-len(ticks) // _MOST_TICKS))
    ticks, labels = ticks[::every], labels[::every]
    axes.set_xticks(ticks, labels, rotation=45 if len(ticks) > 6 else 0, fontsize="small")
    axes.set_ylabel(name)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes
