"""Where two logs of a workload's operators part: what was called, and what each call took."""

from __future__ import annotations

from collections import defaultdict
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from operator_log import Call

_MiB = 2**20


def differences(real: list[Call], predicted: list[Call], least: int) -> list[str]:
    """Return lines: the peaks, then calls only one side has, then, by operator, what calls of both took differently.

    Of no interest is what differs by fewer than `least` bytes.
    """
    # Calls that take and give nothing, such as views and host work, differ between versions and explain nothing.
    real, predicted = ([c for c in calls if c.events or c.peak != c.before] for calls in (real, predicted))
    lines = [peak_text("real", real), peak_text("predicted", predicted)]
    inside = defaultdict(list)
    for tag, ours, theirs in matched(real, predicted):
        if tag == "equal":
            for a, b in zip(ours, theirs, strict=True):
                gaps = (b.peak - b.before) - (a.peak - a.before), (b.after - b.before) - (a.after - a.before)
                if max(map(abs, gaps)) >= least:
                    inside[a.op, tuple(a.args), gaps].append((own(a), own(b), a.before))
            continue
        lines += [text("only real", call) for call in ours if taken(call) >= least]
        lines += [text("only predicted", call) for call in theirs if taken(call) >= least]
    for (op, args, gaps), found in sorted(inside.items(), key=lambda item: -max(map(abs, item[0][2]))):
        ours, theirs, before = found[0]
        lines.append(
            f"{len(found):4} x {op}({', '.join(args)})  predicted - real: inside {gaps[0]:+,} kept {gaps[1]:+,}; "
            f"real {ours} predicted {theirs} at {before / _MiB:,.0f} MiB"
        )
    return lines


def matched(real, predicted) -> Iterator[tuple[str, list[Call], list[Call]]]:
    keys = [[call.op.split(".")[1] for call in calls] for calls in (real, predicted)]
    for tag, a, b, c, d in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        yield tag, real[a:b], predicted[c:d]


def own(call: Call) -> list[int]:
    """Return a call's own events, without those between it and the one before."""
    return call.events[call.between :]


def taken(call: Call) -> int:
    return max(call.peak - call.before, abs(call.after - call.before))


def text(which: str, call: Call) -> str:
    return f"{which}: {call.op}({', '.join(call.args)}) {own(call)} at {call.before / _MiB:,.0f} MiB"


def peak_text(which: str, calls: list[Call]) -> str:
    highest = max(range(len(calls)), key=lambda number: calls[number].peak)
    call = calls[highest]
    return f"{which} peak {call.peak:,} in call {highest} of {len(calls)}, {text('', call).removeprefix(': ')}"
