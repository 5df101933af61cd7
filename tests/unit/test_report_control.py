"""How settings, an emptied cache, reservations, caps and audits look: golden texts, and HTML that says the same."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from jupyter_gpumem import report
from jupyter_gpumem.allocator.keys import KEYS
from jupyter_gpumem.records import (
    AllocatorConfig,
    Audit,
    Device,
    DeviceAudit,
    DeviceEmptied,
    DeviceLimit,
    Emptied,
    Fragmentation,
    Limits,
    Pin,
    PoolAudit,
    Reservation,
    Reservations,
    Setting,
    SettingChange,
)
from jupyter_gpumem.units import GiB, MiB

H200 = Device("cuda", 0, "NVIDIA H200", 139 * GiB + 820 * MiB, "GPU-1")
IN_FORCE = {"expandable_segments": ("True", "PYTORCH_ALLOC_CONF"), "roundup_power2_divisions": ("4", "this session")}
CONFIG = AllocatorConfig(
    settings=tuple(
        Setting(key, *IN_FORCE.get(key, (known.default, "default")), known.accepts, key != "pinned_free_catch_all")
        for key, known in KEYS.items()
    ),
    text="expandable_segments:True,roundup_power2_divisions:4",
    changes=None,
    verified=("expandable_segments", "roundup_power2_divisions"),
    warnings=(),
    notes=(),
    permanent='os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True,roundup_power2_divisions:4"',
    version="2.11.0+cu130",
)
CHANGED = replace(
    CONFIG,
    changes=(
        SettingChange("expandable_segments", "False", "True", KEYS["expandable_segments"].effect),
        SettingChange("roundup_power2_divisions", "0 (off)", "4", KEYS["roundup_power2_divisions"].effect),
    ),
    warnings=("pointless: garbage_collection_threshold does nothing without a memory cap",),
    notes=("300.00 MiB of unused memory went back to the driver: it could not grow.",),
)
EMPTIED = DeviceEmptied(
    device=H200,
    before=20 * GiB,
    after=9 * GiB,
    allocated=6 * GiB,
    stranded=2 * GiB,
    private=960 * MiB,
    workspaces=64 * MiB,
    held=2 * GiB,
    pins=(
        Pin(0x7F0000000000, 1900 * MiB, 12 * MiB, 3, "/home/me/train.py:41 in step"),
        Pin(0x7E0000000000, 100 * MiB, 512, 1, None),
    ),
    pinned_by=12 * MiB + 512,
)
RESERVED = Reservation(
    "reserve-1", H200, 64 * GiB, 64 * GiB, 0x7E4D00000000, "driver", "large", False, 0, "cached", 64 * GiB
)
HELD = replace(RESERVED, name="spare", size=2 * GiB, taken=0, segment="expandable", state="held", stream=0x55AA, free=0)
USELESS = replace(
    RESERVED,
    warnings=("nearly useless: with max_split_size_mb:200 a block of that size is kept whole",),
    taken=GiB,
    whole=True,
)
PRIVATE = replace(RESERVED, pool="small", private=True, stream=0x55AA)
POOLS = (
    PoolAudit((0, 0), "large", 0, 6 * GiB, 2 * GiB, 4 * GiB, GiB, GiB, 3 * GiB, 0.75, 20),
    PoolAudit((0, 0), "large", 0x55AA, 40 * MiB, 40 * MiB, 0, 0, 0, 0, None, 1),
    PoolAudit((0, 0), "small", 0, 2 * MiB, MiB, MiB, MiB, 0, MiB, 0.0, 1),
    PoolAudit((1, 0), "large", 0, 960 * MiB, 0, 960 * MiB, 960 * MiB, 0, 0, 0.0, 1),
)
AUDITED = DeviceAudit(
    device=H200,
    allocated=2 * GiB + 41 * MiB,
    reserved=6 * GiB + 1002 * MiB,
    fragmentation=Fragmentation(GiB, 3 * GiB + MiB, 960 * MiB, GiB, 0.75, 23, 90),
    pools=POOLS,
    exceeded=True,
)
COMPACTED = replace(
    AUDITED,
    reserved=AUDITED.reserved - GiB,
    fragmentation=replace(AUDITED.fragmentation, returnable=0),
    pools=(replace(POOLS[0], reserved=5 * GiB, free=3 * GiB, returnable=0), *POOLS[1:]),
)

SHOWN = {
    "config": CONFIG,
    "config_changed": CHANGED,
    "config_unchanged": replace(CONFIG, changes=()),
    "emptied": Emptied((EMPTIED,), 0.0123, recorded=True),
    "emptied_not_recorded": Emptied((replace(EMPTIED, private=0, workspaces=0, held=0),), 0.0123),
    "emptied_all": Emptied((DeviceEmptied(H200, GiB, 0, 0, 0, 0, 0, 0, (), 0),), 0.002),
    "emptied_nothing": Emptied((), 0.0, missing="this process has not used a GPU yet"),
    "reserved": RESERVED,
    "reserved_held": HELD,
    "reserved_useless": USELESS,
    "reserved_in_private_pool": PRIVATE,
    "reservations": Reservations((RESERVED, HELD, replace(RESERVED, name="old", state="gone", free=0))),
    "reservations_released": Reservations((), ("spare",)),
    "limit": Limits((DeviceLimit(H200, 20 * GiB, None, 6 * GiB),), changed=True),
    "limit_exceeded": Limits((DeviceLimit(H200, 20 * GiB, 40 * GiB, 26 * GiB),), changed=True),
    "limit_none": Limits((DeviceLimit(H200, None, None, 6 * GiB),), changed=False),
    "limit_nowhere": Limits((), changed=False, missing="this process has not used a GPU yet"),
    "audit": Audit((AUDITED,), 0.45),
    "audit_compacted": Audit((COMPACTED,), 0.45, expandable=True, before=(AUDITED,), collected=1234),
    "audit_nothing_reserved": Audit(
        (DeviceAudit(H200, 0, 0, Fragmentation(0, 0, 0, 0, None, 0, 0), (), exceeded=False),), 0.45
    ),
    "audit_nowhere": Audit((), 0.45, missing="this process has not used a GPU yet"),
    "audited_device": AUDITED,
}


@pytest.mark.parametrize("name", SHOWN)
def test_text(golden, name):
    """What is printed, line by line."""
    golden(name, str(SHOWN[name]))


def test_the_time_for_all_devices_is_shown_once():
    """It is that of one call, and not of each device."""
    other = replace(EMPTIED, device=replace(H200, index=1))
    first, second = str(Emptied((EMPTIED, other), 0.0123)).split("\n\n")
    assert "12.3 ms for all devices" in first.splitlines()[0]
    assert "ms" not in second.splitlines()[0]


def test_names_in_other_scripts_are_aligned():
    """Wide characters take two columns of a terminal each, and accents that stand alone none."""
    names = ("spare", "\u4e88\u5099", "e\u0301")
    table = str(Reservations(tuple(replace(HELD, name=name) for name in names))).splitlines()[2:]
    shifts = [line.index("cuda:0") for line in table]
    assert shifts == [shifts[0], shifts[0] - 2, shifts[0] + 1]


@pytest.mark.parametrize("name", SHOWN)
def test_html_says_the_same(name):
    """Every word of the text is in the HTML, which has no script."""
    bundle = report.mimebundle(SHOWN[name])
    html = re.sub(r"<[^>]+>", " ", bundle["text/html"])
    for entity, plain in (("&quot;", '"'), ("&#x27;", "'"), ("&gt;", ">"), ("&lt;", "<")):
        html = html.replace(entity, plain)
    assert set(bundle["text/plain"].split()) <= set(html.split())
    assert "<script" not in bundle["text/html"]


@pytest.mark.parametrize("name", SHOWN)
def test_lines_fit_a_terminal(name):
    """No line is wider than a report may be."""
    assert max(map(len, str(SHOWN[name]).splitlines())) <= 130


@pytest.mark.parametrize("name", SHOWN)
def test_plain_containers(name):
    """Every record is JSON."""
    import json

    assert json.loads(json.dumps(SHOWN[name].to_dict()))
