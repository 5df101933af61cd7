"""Workloads whose memory is predicted and measured: plain PyTorch as a user writes it, one to three steps each.

A case's function is a generator that yields its model after each step, so that whoever runs it can read counters there.
It asks for "cuda" and nothing else: the same function runs on a GPU and on the virtual one. Shapes are fixed; values
are random. `CASES` has them by name.
"""

from . import pictures, tables, text
from .case import CASES, Case

__all__ = ["CASES", "Case", "pictures", "tables", "text"]
