"""The magics that act on the allocator, in a shell: what they show, refuse and complete, and what reloading leaves."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from jupyter_gpumem.allocator.environment import VARIABLES
from jupyter_gpumem.control.reservation import RESERVATIONS

torch = pytest.importorskip("torch")

MAGICS = ("gpumem_config", "gpumem_empty", "gpumem_reserve", "gpumem_limit", "gpumem_audit")


@pytest.fixture
def virtual(bare, monkeypatch):
    """A shell with the extension and a virtual A100 that is in use."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    bare.shell.user_ns["torch"] = torch
    assert bare("%load_ext jupyter_gpumem\n%gpumem_virtual on").error is None
    assert bare("first = torch.empty(1 << 20, dtype=torch.uint8, device='cuda')").error is None
    yield bare
    RESERVATIONS.release()
    bare("del first\n%gpumem_virtual off")


def refusal(cells, line):
    """Return the one line with which a magic refuses."""
    error = cells(line).error
    assert isinstance(error, UsageError), error
    assert "\n" not in str(error)
    return str(error)


def test_settings(virtual):
    """What is in force is shown; a change says before and after, and how to keep it."""
    (shown,) = virtual("%gpumem_config").texts
    assert "expandable_segments" in shown
    assert "default" in shown
    (changed,) = virtual("%gpumem_config expandable_segments:True, roundup_power2_divisions:4").texts
    assert "To keep it, put this before import torch" in changed
    outcome = virtual("c = %gpumem_config -o --undo")
    assert outcome.texts == []
    assert virtual["c"].text == ""
    assert virtual("%gpumem_config -q roundup_power2_divisions:[256:1,>:8]").texts == []
    assert virtual("%gpumem_config").texts[0].count("this session") == 1
    assert virtual("%gpumem_config --reset").error is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%gpumem_config max_split_size:5", "did you mean 'max_split_size_mb'"),
        ("%gpumem_config expandable_segments:true", "exactly True or False"),
        ("%gpumem_config expandable_segments=True", "write : instead of ="),
        ('%gpumem_config C"', "No closing quotation"),
        ("%gpumem_config --undo", "there is nothing to undo"),
        ("%gpumem_config --undo --reset", "three things"),
        ("%gpumem_config backend:cudaMallocAsync", "--force (force=True) tries it all the same"),
        ("%gpumem_reserve much", "not a size: 'much'"),
        ("%gpumem_reserve -5GiB", "not a size: '-5GiB'"),
        ("%gpumem_limit -.5GiB", "not a size: '-.5GiB'"),
        ("%gpumem_reserve 1000GiB", "the largest size that would work now is"),
        ("%gpumem_reserve --release nothing", "nothing is put aside under the name 'nothing'"),
        ("%gpumem_reserve 1GiB --release", "ask for one, and"),
        ("%gpumem_reserve --release for later", "quote a name with blanks"),
        ("%gpumem_reserve --hold", "--hold, --name and -d go with a size"),
        ("%gpumem_reserve 2MiB --name ''", "not a name: ''"),
        ("%gpumem_reserve 2MiB -d 7 -d 0", "no such device: cuda:7"),
        ("%gpumem_limit 1000GiB", "more than cuda:0 has"),
        ("%gpumem_limit 1GiB -d 7", "no such device: cuda:7"),
        ("%gpumem_audit --threshold 2", "not a number from 0 to 1: '2'"),
        ("%gpumem_empty now", "unrecognized arguments: now"),
    ],
)
def test_refusals(virtual, line, said):
    """Everything that cannot be done is one line that says why."""
    assert said in refusal(virtual, line)


def test_the_cache(virtual):
    """What went back is said, and shown nowhere with `-q`."""
    virtual("x = torch.empty(300 << 20, dtype=torch.uint8, device='cuda'); del x")
    assert "300.00 MiB returned to the driver" in virtual("%gpumem_empty").texts[0]
    assert virtual("%gpumem_empty -q").texts == []
    virtual("e = %gpumem_empty -o --workspaces")
    assert virtual["e"].returned == 0


def test_where_memory_was_allocated(virtual):
    """With a recording, live memory that pins more is named by its cell."""
    virtual("%gpumem_record start")
    virtual("x = torch.empty(300 << 20, dtype=torch.uint8, device='cuda'); del x")
    virtual("size = 5 << 20\ny = torch.empty(size, dtype=torch.uint8, device='cuda')")
    number = virtual.shell.execution_count - 1
    (shown,) = virtual("%gpumem_empty").texts
    virtual("%gpumem_record stop\ndel y")
    assert f"295.00 MiB by 5.00 MiB in 1 block, the largest from In[{number}], line 2 -" in " ".join(shown.split())


def test_reservations(virtual):
    """Put aside, listed, released."""
    assert "nothing is put aside" in virtual("%gpumem_reserve").texts[0]
    assert "held as 'spare'" in virtual("%gpumem_reserve 2GiB --hold --name spare").texts[0]
    assert "put into the cache as 'reserve-1'" in virtual("%gpumem_reserve 10%free -d 0").texts[0]
    listed = virtual("%gpumem_reserve").texts[0]
    assert "spare" in listed
    assert "cached" in listed
    assert "Given to the cache: spare." in virtual("%gpumem_reserve --release spare").texts[0]
    assert "No longer listed: reserve-1." in virtual("%gpumem_reserve --release").texts[0]


def test_a_name_that_has_to_be_quoted(virtual):
    """What the report and Tab say can be entered as it is, and an empty name does not stand for all."""
    said = " ".join(virtual("%gpumem_reserve 2MiB --hold --name 'for later'").texts[0].split())
    release = "%gpumem_reserve --release 'for later'"
    assert release in said
    assert virtual.complete("%gpumem_reserve --release ") == ["'for later'"]
    assert "nothing is put aside under the name ''" in refusal(virtual, "%gpumem_reserve --release ''")
    assert "Given to the cache: for later." in virtual(release).texts[0]


def test_the_cap_and_the_audit(virtual):
    """Both show, and both hand out their result."""
    assert "cap 10.00 GiB" in virtual("%gpumem_limit 10GiB").texts[0]
    virtual("l = %gpumem_limit -o")
    assert virtual["l"].devices[0].limit == 10 << 30
    assert "no cap" in virtual("%gpumem_limit off -d cuda:0").texts[0]
    assert "above the threshold of 30 %" in virtual("%gpumem_audit --threshold 0.3").texts[0]
    virtual("a = %gpumem_audit -o --compact")
    assert virtual["a"].before is not None


def test_the_status_names_sources(virtual):
    """Settings in force are shown with where they come from."""
    virtual("%gpumem_config -q roundup_power2_divisions:8")
    assert "Allocator settings: roundup_power2_divisions:8 (this session)." in virtual("%gpumem").texts[0]


@pytest.mark.parametrize("name", MAGICS)
def test_help(cells, name):
    """`--help` prints the help, and the docstring is the same; no line is wider than a terminal."""
    outcome = cells(f"%{name} --help")
    assert outcome.error is None
    assert outcome.stdout.startswith(f"usage: %{name}")
    assert "%%" not in outcome.stdout
    assert cells.shell.find_line_magic(name).__doc__ == outcome.stdout[:-1]
    assert max(map(len, outcome.stdout.splitlines())) <= 120


COMPLETIONS = {
    "%gpumem_config exp": ["expandable_segments:"],
    "%gpumem_config expandable_segments:": ["expandable_segments:True", "expandable_segments:False"],
    "%gpumem_config expandable_segments:T": ["expandable_segments:True"],
    "%gpumem_config a:1,max_s": ["a:1,max_split_size_mb:"],
    "%gpumem_config a:1, gar": ["garbage_collection_threshold:"],
    "%gpumem_config a:1,roundup_power2_divisions:[256:1,": ["a:1,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"],
    "%gpumem_config roundup_power2_divisions:[256:1,>:8],exp": [
        "roundup_power2_divisions:[256:1,>:8],expandable_segments:"
    ],
    "%gpumem_config --u": ["--undo"],
    "%gpumem_reserve 8": ["80%", "80%free"],
    "%gpumem_reserve --release s": ["spare"],
    "%gpumem_limit o": ["off"],
    "%gpumem_limit -d cu": ["cuda:0"],
    "%gpumem_audit --c": ["--compact"],
    "%gpumem_empty --w": ["--workspaces"],
}


def test_completion(virtual):
    """Tab offers keys, values, devices, names and options."""
    virtual("%gpumem_reserve 1MiB --hold --name spare")
    assert {line: virtual.complete(line) for line in COMPLETIONS} == COMPLETIONS


@pytest.mark.parametrize(
    "line", ["%gpumem_empty", "%gpumem_limit", "%gpumem_audit", "%gpumem_config", "%gpumem_reserve"]
)
def test_without_a_device_in_use(bare, line):
    """Each says what there is to say, and is no error."""
    assert bare("%load_ext jupyter_gpumem").error is None
    outcome = bare(line)
    assert outcome.error is None
    assert len(outcome.texts) == 1


@pytest.mark.parametrize(
    "line", ["%gpumem_reserve 1GiB", "%gpumem_limit 1GiB", "%gpumem_config expandable_segments:True"]
)
def test_acting_without_a_gpu_is_refused(bare, line):
    """The reason is that of every other magic."""
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    bare("%load_ext jupyter_gpumem")
    assert "GPU" in refusal(bare, line)


@pytest.fixture
def modelled(bare):
    """A shell with the extension, beside virtual cards that it did not switch on and so does not switch off."""
    from jupyter_gpumem.virtual.cards import parse_cards
    from jupyter_gpumem.virtual.facade import Facade
    from jupyter_gpumem.virtual.memory import VirtualMemory
    from jupyter_gpumem.virtual.patches import Patches

    patches, memory = Patches(), VirtualMemory(parse_cards("A100-80GB"))
    Facade(memory, lambda *_: None).install(patches)
    memory.allocate(0, 1 << 20)
    assert bare("%load_ext jupyter_gpumem").error is None
    yield bare, memory
    RESERVATIONS.release()
    assert patches.undo() == []


def test_held_memory_outlasts_a_reload(modelled):
    """It is there after a reload under its name, and gone once the extension is unloaded."""
    cells, memory = modelled
    cells("%gpumem_reserve 1GiB --hold --name spare")
    levels = [memory.allocators[0].total.size]
    cells("%reload_ext jupyter_gpumem")
    levels.append(memory.allocators[0].total.size)
    assert "spare" in cells("%gpumem_reserve").texts[0]
    cells("%unload_ext jupyter_gpumem")
    levels.append(memory.allocators[0].total.size)
    assert [level >> 20 for level in levels] == [1025, 1025, 1]


def test_unloading_ends_monitors(modelled):
    """No thread of ours outlives the extension."""
    cells, _ = modelled
    cells("import jupyter_gpumem as gm; m = gm.monitor(3600).start()")
    assert cells["m"].running
    cells("%unload_ext jupyter_gpumem")
    assert not cells["m"].running
