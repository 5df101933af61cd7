"""Out-of-memory errors: read, explained from the state in which they happened, and advice that was tried out."""

from .explaining import explain_error, explain_oom, explained, latest_oom
from .texts import find_oom, parse

__all__ = ["explain_error", "explain_oom", "explained", "find_oom", "latest_oom", "parse"]
