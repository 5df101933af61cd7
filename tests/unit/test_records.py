"""Records: numbers and names, what follows from them, and how they reach their renderers."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.lib.pretty import pretty

import jupyter_gpumem.report  # noqa: F401 - registers the renderers
from jupyter_gpumem import records
from jupyter_gpumem.records import (
    NOTHING_YET,
    Counters,
    Device,
    DeviceStatus,
    DeviceUsage,
    DriverMemory,
    Fragmentation,
    Measurement,
    Record,
    Series,
    Status,
)
from jupyter_gpumem.units import GiB

CARD = Device("cuda", 0, "NVIDIA H200", 140 * GiB, "GPU-1", "0000:01:00.0")


def usage(**changes):
    """Return a usage of the card with some fields changed."""
    start = Counters(allocated=100, reserved=1000, retries=1, ooms=0, allocation_count=5)
    end = Counters(allocated=150, reserved=1500, retries=3, ooms=1, allocation_count=9)
    fields = {"device": CARD, "start": start, "end": end, "peak_allocated": 400, "peak_reserved": 2000}
    return DeviceUsage(**fields | changes)


def driver(used, process, total=140 * GiB):
    """Return a driver's answer."""
    return DriverMemory(total, used, total - used, process, "nvml")


def status_of(one):
    """Return a status of one device."""
    return Status((one,), {"expandable_segments": "True"}, {"torch": "2.13.0"})


EVERY = [
    CARD,
    NOTHING_YET,
    driver(5, None),
    usage(),
    usage(peak_allocated=None, peak_reserved=None, driver_start=driver(10, 5), driver_end=driver(20, 7)),
    Measurement((usage(),), 1.5, repeat=(1, 3)),
    Measurement((), 0.1, missing="there is no GPU"),
    Series((Measurement((usage(),), 1.5), Measurement((usage(),), 1.4))),
    Fragmentation(1, 2, 3, 4, 0.5, 6, 7),
    DeviceStatus(CARD, NOTHING_YET, driver(5, None), Fragmentation(1, 2, 3, 4, None, 6, 7)),
    status_of(DeviceStatus(CARD, None, None)),
]


@pytest.mark.parametrize("record", EVERY, ids=lambda r: type(r).__name__)
def test_every_record_becomes_json(record):
    """A record survives JSON unchanged: plain containers only, no tuple keys, no objects."""
    plain = record.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert {field.name for field in dataclasses.fields(record)} <= plain.keys()


@pytest.mark.parametrize("record", EVERY, ids=lambda r: type(r).__name__)
def test_records_are_frozen_and_equal_by_value(record):
    """A result cannot be changed by accident, and a copy that went through pickle is the same result."""
    field = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, 1)
    assert pickle.loads(pickle.dumps(record)) == record
    assert not hasattr(record, "__dict__")


def test_derived_values_are_in_the_dict():
    """What the report says is what a script gets from `to_dict`."""
    plain = usage(driver_start=driver(3000, 2000), driver_end=driver(9000, 4000)).to_dict()
    assert plain["delta_allocated"] == 50
    assert plain["delta_reserved"] == 500
    assert plain["peak_over_start"] == 300
    assert plain["outside_delta"] == 2000 - 500
    assert plain["others_delta"] == 5000 - 1000
    assert plain["exact"] is True


def test_differences_of_one_usage():
    """Counts are differences of the counters at both ends."""
    one = usage()
    assert (one.retries, one.ooms, one.allocation_count, one.reserved_over_start) == (2, 1, 4, 1000)


def test_what_is_not_known_stays_unknown():
    """A missing counter makes every value that needs it missing, never zero."""
    one = usage(start=Counters(), peak_allocated=None, peak_reserved=None)
    for name in ("delta_allocated", "delta_reserved", "peak_over_start", "reserved_over_start", "retries", "ooms"):
        assert getattr(one, name) is None, name
    assert one.outside_delta is None
    assert one.others_delta is None
    assert not one.exact


def test_a_doubted_peak_is_not_exact():
    """A lower bound says so in `exact`."""
    assert usage().exact
    assert not usage(doubt="somebody reset it").exact


def test_first_use_counts_everything_outside_as_new():
    """A device without a context held nothing of this process, whatever the driver was not asked."""
    one = usage(start=NOTHING_YET, driver_start=None, driver_end=driver(5000, 4000), first_use=True)
    assert one.outside_delta == 4000 - 1500
    assert usage(driver_start=None, driver_end=driver(5000, 4000)).outside_delta is None


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({}, True),
        ({"end": Counters(allocated=100, reserved=1000, allocation_count=5)}, False),
        ({"end": Counters(allocated=100, reserved=1000, allocation_count=6)}, True),
        ({"end": Counters(allocated=99, reserved=1000)}, True),
        ({"end": Counters(allocated=100, reserved=999)}, True),
        ({"end": Counters(allocated=100, reserved=1000, allocation_count=5), "first_use": True}, True),
    ],
)
def test_a_device_changed_if_anything_moved(changes, changed):
    """An allocation, a level or a new context is a change; nothing else is."""
    assert usage(**changes).changed is changed


def test_the_peak_of_several_devices_is_the_highest():
    """Peaks of several devices happen at different times and do not add up."""
    other = usage(device=Device("cuda", 1), peak_allocated=700)
    unknown = usage(device=Device("mps", 0), peak_allocated=None)
    assert Measurement((usage(), other, unknown), 1.0).peak_allocated == 700
    assert Measurement((unknown,), 1.0).peak_allocated is None
    assert Measurement((), 1.0).peak_allocated is None


def test_devices_are_found_by_index_and_label():
    """`result[0]` and `result["cuda:1"]` find the device as PyTorch numbers it, not by position."""
    one, three = usage(device=Device("cuda", 1)), usage(device=Device("cuda", 3))
    result = Measurement((one, three), 1.0)
    assert result[1] is one
    assert result[3] is three
    assert result["cuda:3"] is three
    for unknown in (0, 2, -1, "cuda:0", "1"):
        with pytest.raises(KeyError):
            result[unknown]


sizes = st.integers(0, 200 * GiB)


@given(
    free=sizes, others=sizes, outside=sizes, allocated=sizes, returnable=sizes, private=sizes, stranded=sizes,
    tells=st.booleans(), snapshot=st.booleans(),
)  # fmt: skip
def test_layers_add_up_to_the_card(free, others, outside, allocated, returnable, private, stranded, tells, snapshot):
    """Whatever the numbers, the layers are complete and none is counted twice."""
    reserved = allocated + returnable + private + stranded
    process = reserved + outside
    total = process + others + free
    one = DeviceStatus(
        CARD,
        Counters(allocated=allocated, reserved=reserved),
        DriverMemory(total, process + others, free, process if tells else None, "nvml"),
        Fragmentation(returnable, stranded, private, 0, None, 0, 0) if snapshot else None,
    )
    layers = dict(one.layers)
    assert len(layers) == len(one.layers)
    assert sum(layers.values()) == total
    assert all(size >= 0 for size in layers.values())
    assert layers["allocated by tensors"] == allocated
    if snapshot:
        assert layers["reserved, stranded"] == stranded
    if tells:
        assert layers["other processes"] == others
        assert layers["this process outside PyTorch"] == outside


@given(allocated=sizes, unallocated=sizes)
def test_layers_without_a_driver_add_up_to_what_is_reserved(allocated, unallocated):
    """Without the driver's answer there is nothing to say beyond the allocator."""
    one = DeviceStatus(CARD, Counters(allocated=allocated, reserved=allocated + unallocated), None)
    assert one.layers == (("allocated by tensors", allocated), ("reserved, unallocated", unallocated))


@given(st.integers(0, 2**48), st.integers(1, 2**48))
def test_the_unallocated_ratio_is_a_fraction(allocated, more):
    """It lies between 0 and 1 and is missing where nothing is reserved."""
    one = DeviceStatus(CARD, Counters(allocated=allocated, reserved=allocated + more), None)
    assert 0 <= one.unallocated_ratio <= 1
    assert DeviceStatus(CARD, NOTHING_YET, None).unallocated_ratio is None
    assert DeviceStatus(CARD, None, None).unallocated_ratio is None


SHOWN = [
    Measurement((usage(),), 1.5),
    Series((Measurement((usage(),), 1.5),)),
    status_of(DeviceStatus(CARD, None, None)),
]


@pytest.mark.parametrize("record", SHOWN, ids=lambda r: type(r).__name__)
def test_ipython_prints_the_text_form(record):
    """The pretty printer shows the report, not the fields, also inside a container."""
    assert pretty(record) == str(record)
    assert str(record) != repr(record)
    assert str(record).splitlines()[0] in pretty([record])
    assert record._repr_html_().startswith("<div")


def test_a_record_without_renderer_shows_its_fields():
    """Parts of a result have no report of their own and print as dataclasses do."""
    assert str(CARD) == repr(CARD)
    assert pretty(CARD) == repr(CARD)
    assert CARD._repr_html_() is None


def test_renderers_are_registered_by_class(monkeypatch):
    """A renderer serves its own class and no other."""
    monkeypatch.setattr(Record, "_renderers", dict(Record._renderers))
    Device.rendered_by(text=lambda d: f"text of {d.label}", html=lambda d: f"<b>{d.label}</b>")
    assert str(CARD) == pretty(CARD) == "text of cuda:0"
    assert CARD._repr_html_() == "<b>cuda:0</b>"
    assert str(NOTHING_YET) == repr(NOTHING_YET)


def test_records_have_room_for_numbers_and_names_only():
    """No field of any record can hold a tensor, a frame or a namespace: every annotation is a plain type."""
    allowed = {"str", "int", "float", "bool", "None", "tuple", "dict", "..."}
    allowed |= {name for name, kind in vars(records).items() if isinstance(kind, type) and issubclass(kind, Record)}
    for name, kind in vars(records).items():
        if isinstance(kind, type) and issubclass(kind, Record) and dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                words = field.type.replace("[", " ").replace("]", " ").replace(",", " ").replace("|", " ").split()
                assert set(words) <= allowed, f"{name}.{field.name}: {field.type}"


def test_the_empty_reading_is_all_zeros():
    """An allocator that does not exist yet has counted nothing, which is known and not missing."""
    assert set(NOTHING_YET.to_dict().values()) == {0}
