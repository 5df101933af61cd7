"""Where PyTorch reads its settings from, and which variable wins."""

from __future__ import annotations

import pytest

from jupyter_gpumem.control.environment import permanent_line, read_environment

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
        ("", {}, None),
    ],
)
def test_the_permanent_line(text, environ, line):
    """The line sets the variable that is in use; nothing is needed for PyTorch's defaults."""
    assert permanent_line(text, read_environment(environ)) == line
