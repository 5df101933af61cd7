"""Replays of synthetic traces, of which all is known: those of the model itself, and some written by hand."""

from __future__ import annotations

import pytest
from allocator_requests import play
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpumem.allocator.check import check
from jupyter_gpumem.allocator.compiler import compile_trace
from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.allocator.replay import Conditions, replay, stranded
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.allocator.trace import FAIL, Circumstances
from jupyter_gpumem.errors import RecordingError
from jupyter_gpumem.recording import Recording
from jupyter_gpumem.units import GiB, MiB


class Recorder(Allocator):
    """An allocator that writes PyTorch's trace of what it does."""

    def __init__(self, *arguments, **more):
        self.events = []
        super().__init__(*arguments, **more)
        for name, action in (("release", "segment_free"), ("unmap", "segment_unmap"), ("map", "segment_map")):
            self._listen(name, action)
        allocate = self.driver.allocate

        def listened(size):
            address = allocate(size)
            if address is not None:
                self.note("segment_alloc", address, size)
            return address

        self.driver.allocate = listened

    def _listen(self, name, action):
        inner = getattr(self.driver, name)

        def listened(address, size):
            answer = inner(address, size)
            if answer is not False:
                self.note(action, address, size)
            return answer

        setattr(self.driver, name, listened)

    def note(self, action, address, size, stream=0):
        self.events.append({"action": action, "addr": address, "size": size, "stream": stream})

    def malloc(self, size, stream=0, pool=None):
        try:
            address = super().malloc(size, stream, pool)
        except ModelOutOfMemoryError:
            self.events.append({"action": "oom", "device_free": 0, "size": size, "stream": stream})
            raise
        self.note("alloc", address, size, stream)
        return address

    def free(self, address):
        self.note("free_requested", address, self.blocks[address].requested, self.blocks[address].shelf.stream)
        self.note("free_completed", address, self.blocks[address].requested, self.blocks[address].shelf.stream)
        super().free(address)

    def defer(self, address):
        self.note("free_requested", address, self.blocks[address].requested, self.blocks[address].shelf.stream)
        super().defer(address)

    def complete(self, address):
        if address in self._pending:
            self.note("free_completed", address, self._pending[address].requested)
        return super().complete(address)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), st.integers(1, 2 * MiB) | st.integers(1, 80 * MiB), st.integers(0, 1)),
        st.tuples(st.just("malloc"), st.integers(1, 2 * MiB) | st.integers(1, 80 * MiB), st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 1000)),
        st.tuples(st.just("defer"), st.integers(0, 1000)),
        st.tuples(st.just("complete"), st.integers(0, 1000)),
        st.tuples(st.just("empty")),
    ),
    max_size=50,
)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("", None),
        ("expandable_segments:True", None),
        ("max_split_size_mb:32", 300 * MiB),
        ("", 300 * MiB),
        ("expandable_segments:True", 300 * MiB),
        ("garbage_collection_threshold:0.4", 300 * MiB),
        ("roundup_power2_divisions:4", 300 * MiB),
    ],
)
@given(script=steps)
@settings(max_examples=40, deadline=None)
def test_what_the_model_records_it_replays(text, limit, script):
    """Traces of the model itself, with pending frees, failures and emptied caches, are replayed exactly."""
    choice = AllocatorSettings.parse(text)
    allocator = Recorder(choice, total_memory=10 * GiB, limit=limit)
    play(allocator, script)
    circumstances = Circumstances(choice, limit, 10 * GiB)
    result, outcome, model = check(compile_trace(allocator.events, circumstances), circumstances)
    assert result.exact, result
    assert outcome.peak_reserved == allocator.total.reserved.peak
    assert model.snapshot() == allocator.snapshot()


def test_stranded_is_what_emptying_does_not_return():
    """The free bytes that stay after `empty_cache()` are the stranded ones, also of growing and of private memory."""
    for text in ("", "expandable_segments:True"):
        allocator = Allocator(AllocatorSettings.parse(text))
        blocks = [allocator.malloc(size * MiB) for size in (50, 3, 50, 1)]
        private = allocator.malloc(30 * MiB, pool=(1, 0))
        for block in (blocks[0], blocks[2], private):
            allocator.free(block)
        expected = stranded(allocator)
        allocator.empty_cache()
        total = allocator.total
        assert allocator.reserved - total.size == expected == stranded(allocator)


def test_a_request_that_failed_is_tried_and_given_back():
    """Where there is memory after all, the request that had failed is counted as saved, and what follows goes on."""
    events = [{"action": "oom", "device_free": 5, "size": 50 * MiB, "stream": 0}]
    trace = compile_trace(events, Circumstances(AllocatorSettings()))
    assert [kind for _, kind, _ in trace.special] == [FAIL]
    assert replay(trace, AllocatorSettings(), Conditions()).saved_ooms == 1
    assert replay(trace, AllocatorSettings(), Conditions(limit=10 * MiB)).first_oom == 0


def test_private_pools_of_the_trace_are_kept_apart():
    """Case O18: requests of private pools are replayed in their own pools, told by the event or by the snapshot."""
    base = 0x7F0000000000
    events = [
        {"action": "segment_alloc", "addr": base, "size": 20 * MiB, "stream": 0},
        {"action": "alloc", "addr": base, "size": 5 * MiB, "stream": 0},
        {"action": "free_requested", "addr": base, "size": 5 * MiB, "stream": 0},
        {"action": "free_completed", "addr": base, "size": 5 * MiB, "stream": 0},
        {"action": "segment_alloc", "addr": base - 20 * MiB, "size": 20 * MiB, "stream": 0},
        {"action": "alloc", "addr": base - 20 * MiB, "size": 5 * MiB, "stream": 0},
    ]
    told = [event | {"pool_id": (0, 1)} if event["addr"] == base else event for event in events]
    segment = {"address": base, "total_size": 20 * MiB, "segment_type": "large", "segment_pool_id": (0, 1)}
    other = {"address": base - 20 * MiB, "total_size": 20 * MiB, "segment_type": "large", "segment_pool_id": (0, 0)}
    blocks = [{"address": base, "size": 20 * MiB, "state": "inactive"}]
    used = [{"address": base - 20 * MiB, "size": 5 * MiB, "state": "active_allocated"}]
    snapshot = [segment | {"blocks": blocks}, other | {"blocks": used}]
    for trace, segments in ((told, []), (events, snapshot)):
        source = Recording({"segments": segments, "device_traces": [trace]})
        assert [request[2] for request in source.trace(0).requests] == [(0, 1), None]
        assert check(source.trace(0), source.circumstances(0), source.held(0))[0].exact
    mixed = Recording({"segments": [], "device_traces": [events]})
    assert check(mixed.trace(0), mixed.circumstances(0))[0].mismatches > 0


@pytest.mark.parametrize(
    "event",
    [
        {"action": "alloc", "size": 5, "stream": 0},
        {"action": "alloc", "addr": 5, "size": 1 << 61, "stream": 0},
        {"action": "alloc", "addr": 5, "size": 5, "stream": 0, "pool_id": "ab"},
        {"action": "alloc", "addr": 5, "size": 5, "stream": 0, "pool_id": 7},
        {"action": "segment_alloc", "addr": 5, "size": 1 << 61, "stream": 0},
        {"action": "free_requested", "size": 5, "stream": 0},
    ],
)
def test_malformed_events_are_refused(event):
    """An event that lacks what a replay needs is refused in one line when the trace is prepared."""
    with pytest.raises(RecordingError) as error:
        Recording({"segments": [], "device_traces": [[event]]}).trace(0)
    assert "\n" not in str(error.value)
