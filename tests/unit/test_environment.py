"""Where PyTorch reads its settings from, and which variable wins."""

from __future__ import annotations

import pytest

from jupyter_gpumem.allocator.environment import (
    as_pytorch_reads,
    permanent_line,
    read_environment,
    starting_settings,
)
from jupyter_gpumem.errors import InvalidValueError

CUDA, ANY = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("environ", "in_force", "variable", "text"),
    [
        ({}, None, None, ""),
        ({CUDA: ""}, None, None, ""),
        ({CUDA: "a:1"}, None, CUDA, "a:1"),
        ({ANY: "a:1"}, "a:1", ANY, "a:1"),
        ({ANY: "b:1", CUDA: "a:1"}, None, CUDA, "a:1"),
        ({ANY: "b:1", CUDA: "a:1"}, "b:1", ANY, "b:1"),
        ({ANY: "b:1", CUDA: "a:1"}, "c:1", CUDA, "a:1"),
        ({"PYTORCH_HIP_ALLOC_CONF": "h:1", ANY: "b:1"}, None, "PYTORCH_HIP_ALLOC_CONF", "h:1"),
    ],
)
def test_which_variable_wins(environ, in_force, variable, text):
    """What PyTorch was seen to have read decides; without that, its order."""
    assert read_environment(environ, in_force)[:2] == (variable, text)


def test_two_that_differ_are_named():
    """It is said which one wins; two that say the same are not worth a word."""
    (note,) = read_environment({ANY: "b:1", CUDA: "a:1"}).notes
    assert note == f"{CUDA} and {ANY} are both set and differ: {CUDA} wins; unset the other."
    assert read_environment({ANY: "a:1", CUDA: "a:1"}).notes == ()


@pytest.mark.parametrize(
    ("text", "environ", "line"),
    [
        ("a:1", {}, f'os.environ["{CUDA}"] = "a:1"'),
        ("a:1", {ANY: "b:1"}, f'os.environ["{ANY}"] = "a:1"'),
        ("", {ANY: "b:1"}, f'del os.environ["{ANY}"]'),
        ("", {ANY: "b:1", CUDA: "a:1"}, f'del os.environ["{CUDA}"], os.environ["{ANY}"]'),
        ("", {}, None),
    ],
)
def test_the_permanent_line(text, environ, line):
    """The line sets the variable that is in use; nothing is needed for PyTorch's defaults."""
    assert permanent_line(text, read_environment(environ)) == line


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("max_split_size_mb:64abc", "max_split_size_mb:64"),
        ("max_split_size_mb : 6 4.5,large_segment_size_mb:+64k", "max_split_size_mb:64,large_segment_size_mb:64"),
        ("garbage_collection_threshold:.5x", "garbage_collection_threshold:0.5"),
        ("garbage_collection_threshold:8e-1", "garbage_collection_threshold:0.8"),
        ("roundup_power2_divisions:[256x:1y,>:2z]", "roundup_power2_divisions:[256:1,>:2]"),
        ("expandable_segments:Truex", "expandable_segments:Truex"),
        ("max_split_size_mb:abc", "max_split_size_mb:abc"),
    ],
)
def test_numbers_end_where_pytorch_ends_them(text, read):
    """Both `std::stoull` and `std::stod` take the beginning."""
    assert as_pytorch_reads(text) == read


def test_a_wrong_variable_is_named(monkeypatch):
    """A virtual GPU begins with the environment's settings; what is wrong with them is not in the user's line."""
    monkeypatch.setenv(CUDA, "max_split_size_mb:64abc")
    assert str(starting_settings()) == "max_split_size_mb:64"
    monkeypatch.setenv(CUDA, "max_split_size_mb:abc")
    with pytest.raises(InvalidValueError, match=f"^the environment variable {CUDA} is wrong: max_split_size_mb:abc is"):
        starting_settings()


def test_a_virtual_gpu_starts_with_them(monkeypatch):
    """As a real card's allocator would; what is named with `settings=` comes instead, the defaults too."""
    pytest.importorskip("torch")
    import jupyter_gpumem as gm

    monkeypatch.setenv(CUDA, "expandable_segments:True")
    for given, text in ((None, "expandable_segments:True"), ("max_split_size_mb:64",) * 2, ("", "")):
        with gm.virtual_gpu("T4", given) as gpu:
            assert str(gpu.memory.allocators[0].settings) == text
    monkeypatch.setenv(CUDA, "expandable_segments:yes")
    with (
        pytest.raises(InvalidValueError, match=r"variable PYTORCH_CUDA_ALLOC_CONF is wrong: .*exactly True or False"),
        gm.virtual_gpu("T4"),
    ):
        raise AssertionError
