"""The allocator settings: what is read, what is refused and in which words, what is printed back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpumem.allocator.keys import KEYS, is_known_to
from jupyter_gpumem.allocator.settings import AllocatorSettings, warnings
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.units import MiB

WRONG = [
    ("max_split_size_mb=128", "max_split_size_mb=128", "write : instead of ="),
    ("max_split_size_mb:128;expandable_segments:True", ";", "write , instead of ;"),
    ("max_split_size_mb:128 expandable_segments:True", "max_split_size_mb:128 expandable", "KEY:VALUE"),
    ('"expandable_segments:True"', '"', "quotation marks"),
    ('C"', 'C"', "quotation marks"),
    ("expandable_segments", "expandable_segments", "KEY:VALUE"),
    ("expandable_segments:", "expandable_segments:", "KEY:VALUE"),
    (":True", ":True", "KEY:VALUE"),
    (",expandable_segments:True", "''", "KEY:VALUE"),
    ("expandable_segments:true", "expandable_segments:true", "exactly True or False"),
    ("expandable_segments:1", "expandable_segments:1", "exactly True or False"),
    ("max_split_size:128", "max_split_size", "'max_split_size_mb'"),
    ("expandable_segment:True", "expandable_segment", "'expandable_segments'"),
    ("zzz:1", "zzz", "the keys are"),
    ("expandable_segments_page_size:20", "expandable_segments_page_size", "'expandable_segments'"),
    ("max_split_size_mb:10", "max_split_size_mb:10", ">= 20"),
    ("max_split_size_mb:20,large_segment_size_mb:64", "max_split_size_mb:20", ">= 64"),
    ("max_split_size_mb:-1", "max_split_size_mb:-1", "whole number"),
    ("max_split_size_mb:64.5", "max_split_size_mb:64.5", "whole number"),
    ("max_split_size_mb:64abc", "max_split_size_mb:64abc", "whole number"),
    (
        "max_split_size_mb:99999999999999",
        "max_split_size_mb:99999999999999",
        "out of range; write a whole number of MB < 8796093022208",
    ),
    ("max_split_size_mb:9999999999999999999999", "max_split_size_mb", "out of range; write at most 15 digits"),
    ("max_non_split_rounding_mb:5", "max_non_split_rounding_mb:5", ">= 20"),
    ("large_segment_size_mb:10", "large_segment_size_mb:10", ">= 11"),
    ("garbage_collection_threshold:1.5", "garbage_collection_threshold:1.5", "between 0.0 and 1.0"),
    ("garbage_collection_threshold:0", "garbage_collection_threshold:0", "leave it out for off"),
    ("garbage_collection_threshold:0.5x", "garbage_collection_threshold:0.5x", "such as 0.8"),
    ("garbage_collection_threshold:nan", "garbage_collection_threshold:nan", "such as 0.8"),
    ("per_process_memory_fraction:2", "per_process_memory_fraction:2", "from 0.0 to 1.0"),
    ("throw_on_cudamalloc_oom:yes", "throw_on_cudamalloc_oom:yes", "exactly True or False"),
    ("roundup_power2_divisions:3", "'3'", "a power of two"),
    ("roundup_power2_divisions:0", "'0'", "a power of two"),
    ("roundup_power2_divisions:[3:4]", "'3'", "power of two"),
    ("roundup_power2_divisions:[4:3]", "'3'", "0 for off"),
    ("roundup_power2_divisions:[4]", "'4'", "SIZE:DIVISIONS"),
    ("roundup_power2_divisions:[]", "''", "SIZE:DIVISIONS"),
    ("roundup_power2_divisions:[4:2", "roundup_power2_divisions:[4:2", "KEY:VALUE"),
    ("[", "[", "KEY:VALUE"),
    ("x" * 30_000, "30,000 characters", "20,000"),
]


@pytest.mark.parametrize(("text", "named", "hint"), WRONG, ids=[row[0][:40] for row in WRONG])
def test_wrong_settings_are_named(text, named, hint):
    """A wrong string is refused in one line that names the bad token and says what to write."""
    with pytest.raises(InvalidValueError) as error:
        AllocatorSettings.parse(text)
    message = str(error.value)
    assert named in message
    assert hint in message
    assert "\n" not in message
    assert len(message) < 600


def test_defaults_are_the_empty_string():
    """No settings are PyTorch's defaults, and print as nothing."""
    settings = AllocatorSettings.parse("")
    assert settings == AllocatorSettings()
    assert str(settings) == ""
    assert settings.large_segment_size == 20 * MiB


def test_blanks_and_a_trailing_comma_are_accepted():
    """Blanks and a trailing comma mean nothing, as in PyTorch."""
    settings = AllocatorSettings.parse(" max_split_size_mb : 128 , expandable_segments:True , ")
    assert settings.max_split_size == 128 * MiB
    assert settings.expandable_segments


def test_rounding_list_fills_as_pytorch_does():
    """The first listed interval fills all smaller ones, unlisted later ones stay off, `>` fills the rest."""
    parse = AllocatorSettings.parse
    assert parse("roundup_power2_divisions:[4:2,16:8]").roundup_power2_divisions == (2, 2, 2, 0, 8, *[0] * 11)
    assert parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_power2_divisions == (
        *[1] * 9, 2, 4, *[8] * 5,
    )  # fmt: skip
    assert parse("roundup_power2_divisions:[>:8]").roundup_power2_divisions == (0, *[8] * 15)
    assert parse("roundup_power2_divisions:4").roundup_power2_divisions == (4,) * 16


def test_keys_that_do_not_matter_are_carried():
    """Real keys that say nothing about device memory survive a round trip untouched."""
    text = "backend:native,pinned_num_register_threads:8,release_lock_on_cudamalloc:True"
    assert str(AllocatorSettings.parse(text)) == text
    assert {"pinned_use_cuda_host_register", "backend"} <= set(KEYS)


def test_a_run_time_call_is_not_incremental():
    """Splitting, rounding and collecting go back to their defaults with every call; the rest is kept."""
    before = AllocatorSettings.parse(
        "expandable_segments:True,large_segment_size_mb:64,garbage_collection_threshold:0.8,"
        "roundup_power2_divisions:4,max_non_split_rounding_mb:128,pinned_num_register_threads:4"
    )
    after = before.then("max_split_size_mb:256")
    assert str(after) == (
        "expandable_segments:True,max_split_size_mb:256,large_segment_size_mb:64,pinned_num_register_threads:4"
    )
    assert before.then("").garbage_collection_threshold == 0.0


def test_large_segment_size_is_read_first():
    """What others are measured against counts wherever it stands."""
    settings = AllocatorSettings.parse("max_split_size_mb:32,large_segment_size_mb:32")
    assert settings.max_split_size == settings.large_segment_size == 32 * MiB


def test_from_snapshot():
    """The numbers of a snapshot win over its string, which adds what they leave out."""
    values = {
        "PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:40,max_split_size_mb:100",
        "max_split_size": 134217728,
        "garbage_collection_threshold": 0.8,
        "expandable_segments": True,
        "roundup_power2_divisions": {str(1 << i): 4 for i in range(16)},
    }
    settings = AllocatorSettings.from_snapshot(values)
    assert settings.large_segment_size == 40 * MiB
    assert settings.max_split_size == 128 * MiB
    assert settings.expandable_segments
    assert settings.roundup_power2_divisions == (4,) * 16
    assert AllocatorSettings.from_snapshot({"max_split_size": -1}).max_split_size is None
    assert AllocatorSettings.from_snapshot({}) == AllocatorSettings()


@pytest.mark.parametrize(
    "values",
    [{"max_split_size": "big"}, {"garbage_collection_threshold": float("nan")}, {"PYTORCH_CUDA_ALLOC_CONF": 3}],
)
def test_from_a_wrong_snapshot(values):
    """Values of the wrong kind are refused by name."""
    with pytest.raises(InvalidValueError, match="recorded setting"):
        AllocatorSettings.from_snapshot(values)


@pytest.mark.parametrize(
    ("text", "capped", "said"),
    [
        ("max_split_size_mb:128,expandable_segments:True", False, "unsafe: max_split_size_mb with expandable_segments"),
        ("garbage_collection_threshold:0.8", False, "pointless: garbage_collection_threshold"),
        ("garbage_collection_threshold:0.8", True, None),
        ("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", False, None),
        ("throw_on_cudamalloc_oom:True", False, "pointless: throw_on_cudamalloc_oom"),
        ("backend:cudaMallocAsync", False, "not modelled"),
        ("large_segment_size_mb:21", False, "should be even"),
        ("max_split_size_mb:128", False, None),
        ("expandable_segments:True", False, None),
    ],
)
def test_warnings(text, capped, said):
    """Combinations known to be unsafe or pointless are marked, and only those."""
    found = warnings(AllocatorSettings.parse(text), capped=capped)
    assert [said in sentence for sentence in found] == ([True] if said else [])


powers = st.sampled_from([0, *(1 << n for n in range(8))])
settings_strategy = st.builds(
    AllocatorSettings,
    max_split_size=st.none() | st.integers(64, 4096).map(lambda mb: mb * MiB),
    max_non_split_rounding=st.none() | st.integers(64, 4096).map(lambda mb: mb * MiB),
    roundup_power2_divisions=st.lists(powers, min_size=16, max_size=16).map(tuple)
    | powers.map(lambda d: (d,) * 16)
    | st.tuples(powers, powers, st.integers(0, 15)).map(lambda t: (t[0],) * t[2] + (t[1],) * (16 - t[2])),
    garbage_collection_threshold=st.just(0.0) | st.floats(1e-6, 0.999999),
    expandable_segments=st.booleans(),
    large_segment_size=st.integers(11, 64).map(lambda mb: mb * MiB),
    per_process_memory_fraction=st.just(1.0) | st.floats(1e-9, 1.0),
    throw_on_cudamalloc_oom=st.booleans(),
    others=st.just(()) | st.just((("pinned_num_register_threads", "8"),)),
)


@given(settings_strategy)
def test_settings_round_trip(settings):
    """Every settings object prints as a string that reads back as the same."""
    assert AllocatorSettings.parse(str(settings)) == settings


@given(st.text(alphabet="abm_:,=[]>0123456789. TrueFals\"'", max_size=60))
def test_any_text_is_read_or_refused_in_one_line(text):
    """Whatever is typed is either understood, and then round-trips, or refused in one line."""
    try:
        settings = AllocatorSettings.parse(text)
    except InvalidValueError as error:
        assert "\n" not in str(error)
    else:
        assert AllocatorSettings.parse(str(settings)) == settings


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ("", "expandable_segments:True", "expandable_segments:True"),
        (
            "expandable_segments:True",
            "roundup_power2_divisions:4",
            "expandable_segments:True,roundup_power2_divisions:4",
        ),
        ("max_split_size_mb:128,expandable_segments:True", "max_split_size_mb:default", "expandable_segments:True"),
        ("max_split_size_mb:128", "max_split_size_mb:256", "max_split_size_mb:256"),
        ("max_split_size_mb:128", "expandable_segments:default", "max_split_size_mb:128"),
        ("pinned_num_register_threads:4", "expandable_segments:False", "pinned_num_register_threads:4"),
    ],
)
def test_a_change_is_merged(before, change, after):
    """What a change does not name stays, and `default` takes a key back."""
    assert str(AllocatorSettings.parse(before).merged(change)) == after


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("max_split_size:128", "did you mean 'max_split_size_mb'"),
        ("nonsense:default", "unknown allocator setting 'nonsense'"),
        ("large_segment_size_mb:256", "max_split_size_mb:128 is out of range; write a whole number of MB >= 256"),
        ("max_split_size_mb=64", "write : instead of ="),
    ],
)
def test_a_change_is_checked_together_with_what_is_there(change, said):
    """A change that does not go with what is in force is refused as PyTorch would refuse the whole."""
    with pytest.raises(InvalidValueError, match=re.escape(said)):
        AllocatorSettings.parse("max_split_size_mb:128").merged(change)


@given(settings_strategy, settings_strategy)
def test_a_command_makes_just_these_settings(before, after):
    """The string that is sent leaves nothing of what was before, although PyTorch keeps what is not named."""
    assert before.then(after.command(before)) == after


@given(settings_strategy, settings_strategy)
def test_the_change_between_two_settings(before, after):
    """What `merged` has to be given is what differs."""
    assert before.merged(after.change_from(before)) == after


def test_what_cannot_be_taken_back_is_said():
    """A key whose default cannot be written stays until the process ends."""
    before = AllocatorSettings.parse("pinned_reserve_segment_size_mb:64")
    with pytest.raises(InvalidValueError, match=r"pinned_reserve_segment_size_mb cannot go back to 0 \(off\)"):
        AllocatorSettings().command(before)


@pytest.mark.parametrize(
    "text",
    [
        "release_lock_on_cudamalloc:true",
        "pinned_num_register_threads:3",
        "pinned_num_register_threads:256",
        "pinned_reserve_segment_size_mb:0",
        "pinned_max_cached_size_mb:5x",
        "backend:foo",
        "graph_capture_record_stream_reuse:1",
    ],
)
def test_keys_that_do_not_matter_are_checked_too(text):
    """A value that a CUDA build of PyTorch refuses is refused, also where it says nothing about device memory."""
    with pytest.raises(InvalidValueError, match=text.partition(":")[0]):
        AllocatorSettings.parse(text)


@pytest.mark.parametrize(
    ("key", "version", "known"),
    [
        ("large_segment_size_mb", "2.10.0+cu126", False),
        ("large_segment_size_mb", "2.11.0", True),
        ("expandable_segments", "2.6.0", True),
        ("throw_on_cudamalloc_oom", "2.9.1", False),
        ("throw_on_cudamalloc_oom", "nightly", True),
    ],
)
def test_which_version_knows_a_key(key, version, known):
    """Keys that came later are told apart; a version that cannot be read is taken as new."""
    assert is_known_to(key, version) is known
