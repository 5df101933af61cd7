"""Where the allocator settings come from: the environment, a virtual GPU, the defaults; and where there are none."""

from __future__ import annotations

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem import devices
from jupyter_gpumem.allocator.environment import VARIABLES
from jupyter_gpumem.control import changing
from jupyter_gpumem.control import configuration as module
from jupyter_gpumem.control.configuration import configuration
from jupyter_gpumem.errors import InvalidValueError, UnavailableError
from tests.notebooks import take

torch = pytest.importorskip("torch")


def test_the_fraction_is_told_from_the_cap_in_force(virtual):
    """The key says what a device begins with: a cap of `limit` is another, and where it is shown is said."""
    said = "per_process_memory_fraction is what a device begins with; %gpumem_limit shows the cap in force."
    assert said not in gm.allocator_config().notes
    gm.limit("50%")
    config = gm.allocator_config()
    assert config["per_process_memory_fraction"] == "1.0"
    assert said in config.notes
    gm.limit("off")
    assert said not in gm.allocator_config().notes


def test_a_fraction_that_is_lifted_is_no_cap():
    """What does nothing without a cap is called pointless then, whatever the device began with."""
    asked = "per_process_memory_fraction:0.5,garbage_collection_threshold:0.8"
    with gm.virtual_gpu("A100-80GB", settings=asked):
        assert gm.allocator_config().warnings == ()
        kept = take(1)
        config = gm.allocator_config()
        assert (config.warnings, config.notes) == ((), ())
        gm.limit("off")
        config = gm.allocator_config()
        assert config.warnings[0].startswith("pointless: garbage_collection_threshold")
        assert "%gpumem_limit shows the cap in force" in config.notes[0]
        del kept


def test_a_key_of_a_later_version(virtual, monkeypatch):
    """A key that this PyTorch does not have yet is named with the version that brings it."""
    monkeypatch.setattr(module, "versions", lambda: {"torch": "2.10.0"})
    with pytest.raises(InvalidValueError, match=r"large_segment_size_mb came with PyTorch 2\.11; this is 2\.10\.0"):
        gm.allocator_config("large_segment_size_mb:64")
    listed = gm.allocator_config()
    assert not next(s for s in listed.settings if s.key == "large_segment_size_mb").available
    assert "Later versions of PyTorch also know large_segment_size_mb" in str(listed)


def test_from_the_environment(monkeypatch):
    """A value of the environment is named with its variable; a change is `this session`; reset goes back to it."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True,roundup_power2_divisions:4")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    from jupyter_gpumem.allocator.settings import AllocatorSettings
    from jupyter_gpumem.virtual.facade.driver import VirtualBackend

    with gm.virtual_gpu("A100-80GB"), monkeypatch.context() as as_if_real:
        as_if_real.setattr(VirtualBackend, "starting_text", lambda _: None)
        before_use = gm.allocator_config()
        assert before_use["expandable_segments"] == "True"
        assert "No device is in use yet: this is what the environment asks for." in before_use.notes

    with gm.virtual_gpu("A100-80GB", AllocatorSettings.parse("expandable_segments:True,roundup_power2_divisions:4")):
        take(1)
        gm.allocator_config("roundup_power2_divisions:8")
        sources = {s.key: (s.value, s.source) for s in gm.allocator_config().settings}
        assert sources["expandable_segments"] == ("True", "PYTORCH_ALLOC_CONF")
        assert sources["roundup_power2_divisions"] == ("8", "this session")
        config = gm.allocator_config(reset=True)
        assert config.text == "expandable_segments:True,roundup_power2_divisions:4"
        assert gm.status().sources == dict.fromkeys(gm.status().settings, "PYTORCH_ALLOC_CONF")


def test_a_virtual_gpu_with_settings_of_its_own(monkeypatch):
    """They are not the environment's: neither that they are, nor that it came too late, is said."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    with gm.virtual_gpu("T4", "roundup_power2_divisions:4"):
        assert gm.allocator_config().notes == ("No device is in use yet: this is what the virtual GPU begins with.",)
        take(1)
        assert gm.allocator_config().notes == ()
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    for settings, given in (("", "PyTorch's defaults"), ("roundup_power2_divisions:4",) * 2):
        with gm.virtual_gpu("T4", settings):
            assert gm.allocator_config()["expandable_segments"] == "False"
            take(1)
            note = f"PYTORCH_CUDA_ALLOC_CONF has no effect: the virtual GPU was switched on with {given}."
            config = gm.allocator_config()
            assert (config.notes, config.text) == ((note,), settings)
            assert gm.status().sources == ({"roundup_power2_divisions": "virtual GPU"} if settings else {})
            gm.allocator_config("max_split_size_mb:64")
            assert gm.status().sources["max_split_size_mb"] == "this session"
            assert gm.allocator_config(reset=True).text == settings
    with gm.virtual_gpu("T4", "expandable_segments:True"):
        take(1)
        assert gm.allocator_config().notes == ()
        assert gm.status().sources == {"expandable_segments": "PYTORCH_CUDA_ALLOC_CONF"}


def test_a_variable_that_was_set_too_late(virtual, monkeypatch):
    """Editing the environment after PyTorch has read it does nothing, and that is said."""
    from jupyter_gpumem.virtual.facade.driver import VirtualBackend

    monkeypatch.setattr(VirtualBackend, "starting_text", lambda _: None)  # as on a real device
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    config = gm.allocator_config()
    assert config["expandable_segments"] == "False"
    assert config.notes == ("PYTORCH_CUDA_ALLOC_CONF was set after PyTorch had read it: it has no effect.",)
    assert gm.allocator_config().notes == config.notes


def test_a_wrong_variable(monkeypatch):
    """A variable that PyTorch will fail at is named before it does."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:true")
    with gm.virtual_gpu("A100-80GB", settings=""):
        assert (
            "PYTORCH_CUDA_ALLOC_CONF is not understood, and PyTorch will probably fail at it"
            in gm.allocator_config().notes[0]
        )


def test_a_variable_that_pytorch_reads_leniently(monkeypatch):
    """What is in force is what PyTorch makes of it, with a note; our own settings have to be written right."""
    from jupyter_gpumem.virtual.facade.driver import VirtualBackend

    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64abc")
    with gm.virtual_gpu("T4", "max_split_size_mb:64"), monkeypatch.context() as as_if_real:
        as_if_real.setattr(VirtualBackend, "starting_text", lambda _: None)
        config = gm.allocator_config()
        assert config["max_split_size_mb"] == "64"
        assert config.notes[0].startswith("PyTorch reads PYTORCH_CUDA_ALLOC_CONF as max_split_size_mb:64:")
        take(1)
        assert gm.allocator_config()["max_split_size_mb"] == "64"
        with pytest.raises(InvalidValueError, match="write a whole number"):
            gm.allocator_config("max_split_size_mb:64abc")


def test_before_torch_is_imported(monkeypatch):
    """The line to write is in the refusal; showing works."""
    monkeypatch.setattr(changing, "loaded_torch", lambda: None)
    with pytest.raises(
        UnavailableError, match=r'write os\.environ\["PYTORCH_CUDA_ALLOC_CONF"\] = "expandable_segments:T'
    ):
        gm.allocator_config("expandable_segments:True")
    assert gm.allocator_config().changes is None


def test_without_a_gpu():
    """What would be in force is shown, a change is refused with the reason, and nonsense is refused as nonsense."""
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert any("without GPU support" in note or "sees no GPU" in note for note in gm.allocator_config().notes)
    with pytest.raises(UnavailableError, match="the allocator settings cannot be changed"):
        gm.allocator_config("expandable_segments:True")
    with pytest.raises(InvalidValueError, match="did you mean"):
        gm.allocator_config("expandable_segment:True")


def test_devices_without_settings(fake):
    """A back end that has none says so."""
    with pytest.raises(UnavailableError, match="PyTorch has no such thing for the devices in use"):
        gm.allocator_config("expandable_segments:True")


def test_each_back_end_has_its_own(virtual):
    """What is known of a virtual GPU's settings ends with it."""
    gm.allocator_config("roundup_power2_divisions:8")
    here = configuration()
    assert here.backend is devices.backend("cuda")
    assert configuration() is here
