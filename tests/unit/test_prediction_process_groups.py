"""Process groups that predicted code makes are gone afterwards, and those that were there are as before."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from jupyter_gpumem.prediction import predict  # noqa: E402

dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def start(tmp_path):
    """What makes the default group, of this one process."""
    assert not dist.is_initialized()
    made = []

    def start():
        made.append(0)
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/{len(made)}", rank=0, world_size=1)

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_default_group_that_is_made_is_gone(start):
    """It can be made again, in each prediction and for real."""

    def code():
        start()
        dist.new_group()
        torch.nn.Linear(4, 4).cuda()

    for _ in range(2):
        assert predict(code, gpu="T4").not_undone == ()
        assert not dist.is_initialized()
    start()
    assert dist.is_initialized()


def test_a_group_that_is_made_beside_others_is_gone(start):
    """The next one has the name that it would have had."""
    start()
    kept = dist.new_group()
    before = dict(dist.distributed_c10d._world.pg_names)
    assert predict(lambda: [dist.new_group() for _ in range(3)], gpu="T4").not_undone == ()
    assert dist.distributed_c10d._world.pg_names == before
    dist.barrier(kept)
    assert dist.new_group().group_name == str(len(before))


def test_groups_that_are_destroyed_are_named(start):
    """They cannot be made again, also if the code makes others."""
    start()

    def code():
        dist.destroy_process_group()
        start()

    [text] = predict(code, gpu="T4").not_undone
    assert text == "the process group '0' was destroyed, which cannot be undone"
    assert not dist.is_initialized()


def test_a_group_is_gone_where_the_code_fails(start):
    """As all else is."""

    def code():
        start()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        predict(code, gpu="T4")
    assert not dist.is_initialized()
