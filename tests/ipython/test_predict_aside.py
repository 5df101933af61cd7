"""`%%gpumem_predict` leaves what was set and put aside in the session as it was, also with the helper magics inside."""

from __future__ import annotations

import pytest

GiB = 2**30


@pytest.fixture
def session(cells):
    """A shell with a virtual T4 that is in use."""
    cells("%load_ext jupyter_gpumem\n%gpumem_virtual on --gpu T4")
    assert cells("import torch, jupyter_gpumem as gm\nx = torch.empty(2**20, device='cuda')").error is None
    yield cells
    cells("%gpumem_reserve --release\n%unload_ext jupyter_gpumem")


def test_a_reservation_that_a_predicted_cell_releases_is_still_held(session):
    """In the prediction its memory is free; afterwards it is put aside as before, and can be released."""
    before = session("%gpumem_reserve 1GiB --hold --name h1\ntorch.cuda.memory_allocated()").value
    told = session(
        "%%gpumem_predict -v found\n%gpumem_reserve --release h1\nassert torch.cuda.memory_allocated() < 2**30"
    )
    assert told.error is None
    assert session("torch.cuda.memory_allocated()").value == before
    assert "h1" in session("%gpumem_reserve").texts[0]
    assert session("%gpumem_reserve --release h1").error is None
    assert session("torch.cuda.memory_allocated()").value == before - GiB


def test_a_reservation_object_can_be_released_in_a_predicted_cell(session):
    """The object of the session is the trial's too."""
    session("held = gm.reserve('1GiB', hold=True)")
    assert session("%%gpumem_predict\nheld.release()\nassert torch.cuda.memory_allocated() < 2**30").error is None
    assert session("held.record.state").value == "held"


def test_what_a_predicted_cell_puts_aside_is_gone_afterwards(session):
    """Nothing is kept of it, and the next prediction knows nothing of it."""
    for _ in range(2):
        assert session("%%gpumem_predict\nkept = gm.reserve('1MiB', hold=True, name='p')").error is None
    assert "nothing is put aside" in session("%gpumem_reserve").texts[0]
    assert session("torch.cuda.memory_allocated()").value == 4 * 2**20


def test_a_predicted_cell_is_told_how_much_of_the_card_is_free(session):
    """Its memory has no end, but code that asks gets the card's numbers, not zero."""
    told = session("%%gpumem_predict\nfree, total = torch.cuda.mem_get_info()\nassert 13 * 2**30 < free < total, free")
    assert told.error is None


def test_a_cap_that_a_predicted_cell_sets_is_not_shown_afterwards(session):
    """The cap was the trial's, so none is in force, and none is said to be."""
    assert session("%%gpumem_predict\n%gpumem_limit 5GiB").error is None
    assert session("gm.limit().devices[0].limit").value is None
    assert session("torch.cuda.get_per_process_memory_fraction()").value == 1.0


def test_a_cap_of_the_session_outlives_one_of_a_prediction(session):
    """It is in force as before, and said as before."""
    session("%gpumem_limit 4GiB")
    assert session("%%gpumem_predict\n%gpumem_limit 5GiB").error is None
    assert session("gm.limit().devices[0].limit").value == 4 * GiB


def test_settings_that_a_predicted_cell_changes_can_neither_be_seen_nor_undone_afterwards(session):
    """The change before it is the last one still, and is undone."""
    session("%gpumem_config roundup_power2_divisions:4")
    told = session(
        "%%gpumem_predict\n%gpumem_config roundup_power2_divisions:8\n%gpumem_config --undo\n"
        "%gpumem_config expandable_segments:True"
    )
    assert told.error is None
    assert session("gm.allocator_config().text").value == "roundup_power2_divisions:4"
    assert session("gm.allocator_config(undo=True).text").value == ""


def test_predictions_without_a_virtual_gpu_leave_no_back_end_behind(cells):
    """Each has one of its own, whose settings were looked at."""
    from jupyter_gpumem.control import configuration

    cells("%load_ext jupyter_gpumem\nimport torch")
    before = dict(configuration._configurations)
    cell = "%%gpumem_predict --gpu T4\nx = torch.empty(2**20, device='cuda')\n%gpumem_config max_split_size_mb:64"
    assert cells(cell).error is None
    assert configuration._configurations == before
    cells("%unload_ext jupyter_gpumem")


def test_a_cap_that_only_the_settings_ask_for_is_not_in_force(session):
    """PyTorch heeds `per_process_memory_fraction` once, when it begins; a later change caps nothing."""
    session("%gpumem_config per_process_memory_fraction:0.5 --force")
    assert session("gm.limit().devices[0].limit").value is None
    assert session("torch.empty(9 * 2**30, dtype=torch.uint8, device='cuda').nbytes").value == 9 * GiB


def test_what_cannot_be_undone_is_said_also_where_nothing_else_is_to_be_shown(cells):
    """With `-q`, one line; without anything of the kind, none."""
    assert cells("%load_ext jupyter_gpumem\nimport torch\nnumbers = (n for n in range(9))").error is None
    assert cells("%%gpumem_predict -q\n1").texts == []
    told = cells("%%gpumem_predict -q\nnext(numbers)")
    assert told.texts == ["Not undone: the generator <genexpr>() was advanced, which cannot be undone."]
    cells("%unload_ext jupyter_gpumem")
