"""Allocator settings of the running process, on a virtual GPU: merged, read back, undone, taken back when refused."""

from __future__ import annotations

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem.allocator.keys import KEYS
from jupyter_gpumem.errors import InvalidValueError, SettingsRefusedError
from jupyter_gpumem.units import MiB
from tests.notebooks import take

torch = pytest.importorskip("torch")


def told():
    """Return what PyTorch tells of its settings, without the string it was given."""
    found = dict(torch.cuda.memory._snapshot()["allocator_settings"])
    found.pop("PYTORCH_CUDA_ALLOC_CONF")
    return found


def by_others(text):
    """Change the settings as other code does."""
    torch._C._accelerator_setAllocatorSettings(text)


def test_the_defaults(virtual):
    """Every key is listed with its value, and that it is the default."""
    config = gm.allocator_config()
    assert {setting.source for setting in config.settings} == {"default"}
    assert config["max_split_size_mb"] == "unlimited"
    assert (config.text, config.changes, config.permanent) == ("", None, None)
    with pytest.raises(KeyError):
        config["nonsense"]


def test_changes_are_merged(virtual):
    """Three calls, one key each: all three are in force, in PyTorch too."""
    for change in ("max_split_size_mb:200", "roundup_power2_divisions:4", "garbage_collection_threshold:0.8"):
        config = gm.allocator_config(change)
    assert config.text == "max_split_size_mb:200,roundup_power2_divisions:4,garbage_collection_threshold:0.8"
    assert [(c.key, c.before, c.after) for c in config.changes] == [("garbage_collection_threshold", "0 (off)", "0.8")]
    assert told()["max_split_size"] == 200 * MiB
    assert set(told()["roundup_power2_divisions"].values()) == {4}
    assert virtual.memory.allocators[0].settings.max_split_size == 200 * MiB
    sources = {setting.key: setting.source for setting in config.settings}
    assert sources["max_split_size_mb"] == "this session"
    assert sources["expandable_segments"] == "default"
    assert config.permanent == f'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{config.text}"'


@pytest.mark.parametrize("key", sorted(KEYS.keys() - {"backend", "per_process_memory_fraction"}))
def test_every_key(virtual, key):
    """Whatever a running process takes can be changed, and is in force then."""
    known = KEYS[key]
    value = next((example for example in known.examples if example != known.default), "64")
    config = gm.allocator_config(f"{key}:{value}")
    assert config[key] == value
    assert gm.allocator_config()[key] == value


@pytest.mark.parametrize("changes", [5, {"expandable_segments": True}, b"expandable_segments:True"])
def test_what_is_no_text(virtual, changes):
    """It is refused as every other wrong setting is."""
    with pytest.raises(InvalidValueError, match="allocator settings are a text such as"):
        gm.allocator_config(changes)


def test_read_back(virtual):
    """Only keys that PyTorch was asked for count as verified."""
    config = gm.allocator_config("max_split_size_mb:200,large_segment_size_mb:64")
    assert "max_split_size_mb" in config.verified
    assert "large_segment_size_mb" not in config.verified


def test_undo_and_reset(virtual):
    """Undo goes back one change at a time, until there is none; reset can be undone like any other change."""
    states = [told()]
    for change in ("expandable_segments:True", "roundup_power2_divisions:8", "expandable_segments:False"):
        gm.allocator_config(change)
        states.append(told())
    for state in reversed(states[:-1]):
        gm.allocator_config(undo=True)
        assert told() == state
    with pytest.raises(SettingsRefusedError, match="there is nothing to undo"):
        gm.allocator_config(undo=True)
    gm.allocator_config("roundup_power2_divisions:8")
    assert gm.allocator_config(reset=True).text == ""
    assert gm.allocator_config(undo=True).text == "roundup_power2_divisions:8"


def test_naming_the_back_end_that_is_there_changes_nothing(virtual):
    """Nothing is listed as changed that was so before, and there is nothing to undo."""
    config = gm.allocator_config("backend:native")
    assert (config.changes, config.text) == ((), "")
    with pytest.raises(SettingsRefusedError, match="nothing to undo"):
        gm.allocator_config(undo=True)


def test_what_cannot_be_undone_is_said_and_keeps_nothing_else_back(virtual):
    """It is said where it is set; undo and reset take back everything else and say what stays."""
    key, stays = "pinned_max_cached_size_mb", "pinned_max_cached_size_mb stays at 5: it cannot go back to unlimited"
    gm.allocator_config("max_split_size_mb:128")
    gm.allocator_config("roundup_power2_divisions:4")
    said = gm.allocator_config(f"{key}:5,expandable_segments:False,garbage_collection_threshold:0.8").notes
    assert f"{key} cannot go back to unlimited while this process runs: --undo and --reset leave it." in said
    assert not any("cannot go back" in note for note in gm.allocator_config(f"{key}:5,max_split_size_mb:64").notes)
    gm.allocator_config(undo=True)
    undone = gm.allocator_config(undo=True)
    assert undone.text == f"max_split_size_mb:128,roundup_power2_divisions:4,{key}:5"
    assert any(note.startswith(stays) for note in undone.notes)
    undone = gm.allocator_config(undo=True)
    assert (undone.text, undone.notes) == (f"max_split_size_mb:128,{key}:5", ())
    reset = gm.allocator_config(reset=True)
    assert reset.text == f"{key}:5"
    assert any(note.startswith(stays) for note in reset.notes)
    assert gm.allocator_config(reset=True).changes == ()
    with pytest.raises(InvalidValueError, match="cannot go back to unlimited in a running process"):
        gm.allocator_config(f"{key}:default")


def test_what_cannot_be_undone_keeps_no_failed_change_back(virtual, monkeypatch):
    """A change that PyTorch refuses is taken back as far as possible, and refused as any other."""
    working = torch._C._accelerator_setAllocatorSettings

    def refusing(text):
        working(text)
        if "max_split_size_mb" in text:
            raise ValueError("something that only PyTorch knows")

    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", refusing)
    with pytest.raises(SettingsRefusedError, match="only PyTorch knows"):
        gm.allocator_config("pinned_max_cached_size_mb:5,max_split_size_mb:64")
    assert gm.allocator_config().text == "pinned_max_cached_size_mb:5"


@pytest.mark.parametrize("how", ["undo", "reset"])
def test_what_had_no_effect_is_taken_back_without_force(virtual, how):
    """It takes no insisting to be as before."""
    with pytest.raises(SettingsRefusedError, match="does nothing"):
        gm.allocator_config("per_process_memory_fraction:0.5")
    gm.allocator_config("per_process_memory_fraction:0.5", force=True)
    assert gm.allocator_config(**{how: True}).text == ""


def test_nothing_changes(virtual):
    """Asking for what is in force already is no change, and says so."""
    config = gm.allocator_config("expandable_segments:False")
    assert config.changes == ()
    assert "unchanged" in str(config)
    with pytest.raises(SettingsRefusedError, match="there is nothing to undo"):
        gm.allocator_config(undo=True)


def test_what_others_change_is_seen(virtual):
    """Other code's call is what is in force then, with what it left alone; and undo does not run over it."""
    gm.allocator_config("expandable_segments:True,roundup_power2_divisions:8,large_segment_size_mb:64")
    by_others("garbage_collection_threshold:0.7")
    config = gm.allocator_config()
    assert config.text == "expandable_segments:True,garbage_collection_threshold:0.7,large_segment_size_mb:64"
    with pytest.raises(SettingsRefusedError, match="other code has changed the settings since, to 'expandable_seg"):
        gm.allocator_config(undo=True)
    assert gm.allocator_config(undo=True, force=True).text == ""


def test_a_wrong_call_of_others_is_named(virtual):
    """PyTorch tells the last string it was given, good or bad."""
    with pytest.raises(ValueError, match="max_split"):
        by_others("max_split_size_mb:1")
    config = gm.allocator_config()
    assert config.text == ""
    assert "The last settings PyTorch was given, by other code, are wrong" in config.notes[0]


def test_a_half_applied_call_is_taken_back(virtual, monkeypatch):
    """What PyTorch refuses after reading half of it leaves what was in force before, and the next change works."""
    gm.allocator_config("roundup_power2_divisions:8")
    before, working = told(), torch._C._accelerator_setAllocatorSettings

    def refusing(text):
        if "max_split_size_mb" in text:
            working("expandable_segments:True")  # what stands before the bad key
            raise ValueError("something that only PyTorch knows\nand a stack trace")
        working(text)

    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", refusing)
    with pytest.raises(SettingsRefusedError) as caught:
        gm.allocator_config("expandable_segments:True,max_split_size_mb:200", force=True)
    assert "something that only PyTorch knows; nothing was changed" in str(caught.value)
    assert "stack trace" not in str(caught.value)
    assert told() == before
    assert gm.allocator_config("expandable_segments:True").text == "expandable_segments:True,roundup_power2_divisions:8"


def test_a_setting_without_effect_is_taken_back(virtual, monkeypatch):
    """A platform that reads a setting otherwise than it was given is found out by reading back."""
    working = torch._C._accelerator_setAllocatorSettings
    monkeypatch.setattr(
        torch._C,
        "_accelerator_setAllocatorSettings",
        lambda text: working(text.replace("expandable_segments:True", "expandable_segments:False")),
    )
    before = told()
    with pytest.raises(SettingsRefusedError, match="this platform has no virtual memory management"):
        gm.allocator_config("expandable_segments:True,roundup_power2_divisions:8")
    assert told() == before


def test_unused_memory_goes_back_when_segments_change_their_kind(virtual):
    """Free segments of the old kind would only be half used from then on."""
    kept, unused = take(100), take(300)
    del unused
    config = gm.allocator_config("expandable_segments:True")
    assert "300.00 MiB of unused memory went back to the driver: it could not grow." in config.notes
    assert any("102.00 MiB of segments with live tensors stay" in note for note in config.notes)
    new = take(100)
    config = gm.allocator_config("expandable_segments:False")
    assert any("100.00 MiB of expandable segments hold live tensors" in note for note in config.notes)
    del kept, new


def test_the_hazard_is_refused_unless_forced(virtual):
    """A limit below a split segment is refused; forced, it is said what was forced."""
    whole = take(1000)
    del whole
    head, live = take(600), take(100)
    del head
    with pytest.raises(
        SettingsRefusedError, match=r"1 segment of that size or more is split .* --force \(force=True\)"
    ):
        gm.allocator_config("max_split_size_mb:128")
    assert told()["max_split_size"] == -1
    config = gm.allocator_config("max_split_size_mb:128", force=True)
    assert config.notes[0].startswith("Forced: max_split_size_mb:128 is unsafe now")
    del live


def test_warnings(virtual):
    """Garbage collection without a cap is pointless, and with one it is not."""
    assert gm.allocator_config("garbage_collection_threshold:0.8").warnings[0].startswith("pointless")
    gm.limit("50%")
    assert gm.allocator_config().warnings == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"changes": "expandable_segment:True"}, "did you mean 'expandable_segments'"),
        ({"changes": "max_split_size_mb:10"}, "max_split_size_mb:10 is out of range"),
        ({"changes": "a:1", "undo": True}, "three things"),
        ({"undo": True, "reset": True}, "three things"),
    ],
)
def test_wrong_requests(virtual, options, said):
    """What is wrong in itself is refused before anything is done."""
    with pytest.raises(InvalidValueError, match=said):
        gm.allocator_config(**options)
