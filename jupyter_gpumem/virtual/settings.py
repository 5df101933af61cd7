"""Settings of the process that code may change: of Python, of PyTorch, of NumPy, of logging; read, and put back."""

from __future__ import annotations

import contextlib
import decimal
import functools
import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from multiprocessing import context as processes
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._config_module import ConfigModule

from jupyter_gpumem.finishing import run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Setting = tuple[Callable[[], Any], Callable[[Any], object]]

_OF_TORCH = (
    "_get_deterministic_fill_uninitialized_memory _set_deterministic_fill_uninitialized_memory",
    "_get_warnAlways _set_warnAlways",
    "_is_multithreading_enabled _set_multithreading_enabled",
    "_get_cudnn_enabled _set_cudnn_enabled",
    "_get_cudnn_benchmark _set_cudnn_benchmark",
    "_cuda_get_cudnn_benchmark_limit _cuda_set_cudnn_benchmark_limit",
    "_get_cudnn_deterministic _set_cudnn_deterministic",
    "_get_mkldnn_enabled _set_mkldnn_enabled",
    "_get_mkldnn_deterministic _set_mkldnn_deterministic",
    "_get_nnpack_enabled _set_nnpack_enabled",
    "_get_cublas_allow_fp16_reduced_precision_reduction _set_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction _set_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation _set_cublas_allow_fp16_accumulation",
    "_get_cpu_allow_fp16_reduced_precision_reduction _set_cpu_allow_fp16_reduced_precision_reduction",
    "_get_math_sdp_allow_fp16_bf16_reduction _set_math_sdp_allow_fp16_bf16_reduction",
    "_get_flash_sdp_enabled _set_sdp_use_flash",
    "_get_mem_efficient_sdp_enabled _set_sdp_use_mem_efficient",
    "_get_math_sdp_enabled _set_sdp_use_math",
    "_get_cudnn_sdp_enabled _set_sdp_use_cudnn",
    "_get_sdp_priority_order _set_sdp_priority_order",
    "_get_linalg_preferred_backend _set_linalg_preferred_backend",
    "_get_blas_preferred_backend _set_blas_preferred_backend",
    "_get_qengine _set_qengine",
    "is_autocast_cache_enabled set_autocast_cache_enabled",
    # These set more than they say, so the precisions, which follow, have the last word.
    "_get_float32_matmul_precision _set_float32_matmul_precision",
    "_get_cudnn_allow_tf32 _set_cudnn_allow_tf32",
)
"""Functions of `torch._C` that read and write; not every version of PyTorch has all of them."""

_PRECISIONS = (
    *(("generic", "all"), ("cuda", "all"), ("mkldnn", "all")),
    *((backend, operation) for backend in ("cuda", "mkldnn") for operation in ("matmul", "conv", "rnn")),
)
"""The widest first: the others may follow it."""


class Settings:
    """What was set, to be put back any number of times; what is set as it was is not written to."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._before = [(read, write, read()) for read, write in _readable(_settings())]

    def look(self) -> list[Any]:
        """Return what is set now, for `keep_changes`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [_read_now(read) for read, _, _ in self._before]

    def keep_changes(self, since: list[Any]) -> None:
        """Have what was set since then stay so, unless it had been changed before that; not the random numbers."""
        settings = zip(self._before, since, self.look(), strict=True)
        self._before = [
            (read, write, _with_changes(before, earlier, now)) for (read, write, before), earlier, now in settings
        ]

    def restore(self) -> None:
        """Put everything back."""
        run_all(functools.partial(_restore, *setting) for setting in self._before)


class SignalHandlers:
    """The handlers of signals, apart from the other settings: while those are put back, handlers have to wait."""

    def __init__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def restore(self) -> None:
        """Put them back; only the main thread can have set them."""
        for number, handler in self._before.items():
            if signal.getsignal(number) is not handler and handler is not None:  # `None`: not set by Python
                signal.signal(number, handler)


def _readable(settings: Iterator[_Setting]) -> Iterator[_Setting]:
    """Leave out what cannot be read: flags of PyTorch that contradict each other, a folder that is gone."""
    for read, write in settings:
        try:
            read()
        except (RuntimeError, OSError):
            continue
        yield read, write


_UNREADABLE = object()


def _read_now(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (RuntimeError, OSError):
        return _UNREADABLE


def _with_changes(before: Any, earlier: Any, now: Any) -> Any:
    with contextlib.suppress(RuntimeError, ValueError):  # states of random numbers have no one answer
        if now is _UNREADABLE or earlier == now:
            return before
        if earlier == before:
            return now
        if isinstance(before, dict):
            kept = {name: value for name, value in before.items() if name in now or name not in earlier}
            return kept | {name: value for name, value in now.items() if earlier.get(name) != value}
    return before


def _restore(read: Callable[[], Any], write: Callable[[Any], object], before: Any) -> None:
    # Flags that contradict each other, arrays, which have no one answer, a folder that is gone: to be written.
    with contextlib.suppress(RuntimeError, ValueError, OSError):
        if read() == before:
            return
    write(before)


def _settings() -> Iterator[_Setting]:
    yield lambda: dict(os.environ), _set_environment
    yield os.getcwd, os.chdir
    yield _umask, os.umask
    yield lambda: locale.setlocale(locale.LC_ALL), functools.partial(locale.setlocale, locale.LC_ALL)
    yield sys.getrecursionlimit, sys.setrecursionlimit
    yield sys.getswitchinterval, sys.setswitchinterval
    yield sys.gettrace, sys.settrace
    yield sys.getprofile, sys.setprofile
    yield gc.get_threshold, lambda before: gc.set_threshold(*before)
    yield gc.isenabled, lambda before: gc.enable() if before else gc.disable()
    yield _logging, _set_logging
    yield _figures, _close_other_figures
    yield random.getstate, random.setstate
    yield from _settings_of_numpy()
    yield torch.get_rng_state, torch.set_rng_state
    yield torch.is_grad_enabled, torch._C._set_grad_enabled
    yield torch.get_default_dtype, torch.set_default_dtype
    yield torch.get_num_threads, torch.set_num_threads
    yield _deterministic, lambda before: torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])
    yield _anomaly, lambda before: torch._C.set_anomaly_enabled(*before)
    yield _default_device, torch.set_default_device
    for kind in ("cpu", "cuda"):
        yield functools.partial(torch.is_autocast_enabled, kind), functools.partial(torch.set_autocast_enabled, kind)
        yield functools.partial(torch.get_autocast_dtype, kind), functools.partial(torch.set_autocast_dtype, kind)
    for pair in map(str.split, _OF_TORCH):
        if all(hasattr(torch._C, name) for name in pair):
            read, write = (getattr(torch._C, name) for name in pair)
            yield read, functools.partial(_write_one_or_more, write)
    for which in _PRECISIONS:
        yield (
            functools.partial(torch._C._get_fp32_precision_getter, *which),
            functools.partial(torch._C._set_fp32_precision_setter, *which),
        )
    for module in list(sys.modules.values()):
        if isinstance(module, ConfigModule):
            yield module.get_config_copy, functools.partial(_configure, module)
    for owner, name in _attributes():
        yield functools.partial(_get, owner, name), functools.partial(_set, owner, name)


def _attributes() -> Iterator[tuple[Any, str]]:
    """Yield the settings that are nothing but attributes."""
    yield from ((sys, name) for name in ("argv", "excepthook", "displayhook", "unraisablehook", "breakpointhook"))
    yield from ((threading, name) for name in ("excepthook", "_trace_hook", "_profile_hook"))
    yield from ((decimal.getcontext(), name) for name in ("prec", "rounding"))
    yield processes._default_context, "_actual_context"
    yield torch.multiprocessing, "_sharing_strategy"
    yield torch.backends.mha, "_is_fastpath_enabled"
    yield torch.distributions.Distribution, "_validate_args"
    if compiling := sys.modules.get("torch._dynamo.eval_frame"):
        yield compiling, "_stance"
    yield from ((torch.__future__, name) for name in vars(torch.__future__) if name.endswith("_on_conversion"))


def _get(owner: Any, name: str) -> tuple[Any, int]:
    """Return an attribute, and which object it is: an equal one is another, and who has set it asks for his own."""
    return getattr(owner, name), id(getattr(owner, name))


def _set(owner: Any, name: str, before: tuple[Any, int]) -> None:
    setattr(owner, name, before[0])


def _write_one_or_more(write: Callable[..., object], before: Any) -> None:
    if isinstance(before, tuple):
        write(*before)
    else:
        write(before)


def _configure(module: Any, before: dict[str, Any]) -> None:
    """Write those settings of PyTorch's compiler that were changed."""
    now = module.get_config_copy()
    module.load_config({name: value for name, value in before.items() if now[name] != value})


def _umask() -> int:
    """Return which permissions new files do not get; `os.umask` can only be asked by changing it, for all threads."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.partition(":")[2], 8)
    raise OSError("this system does not say")


def _set_environment(before: dict[str, str]) -> None:
    zone = os.environ.get("TZ")
    os.environ.clear()
    os.environ.update(before)
    if before.get("TZ") != zone:
        time.tzset()


def _settings_of_numpy() -> Iterator[_Setting]:
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        yield numpy.random.get_state, numpy.random.set_state
        yield numpy.get_printoptions, lambda before: numpy.set_printoptions(**before)
        yield numpy.geterr, lambda before: numpy.seterr(**before)


def _deterministic() -> tuple[bool, bool]:
    return torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only()


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _default_device() -> Any:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _open_figures() -> Any:
    """Return matplotlib's figures that are open, by number, the one in use last."""
    return sys.modules["matplotlib._pylab_helpers"].Gcf.figs if "matplotlib._pylab_helpers" in sys.modules else {}


def _figures() -> list[Any]:
    return list(_open_figures())


def _close_other_figures(before: list[Any]) -> None:
    """Close what is new, or a notebook shows it below the cell; what was closed is gone."""
    figures = _open_figures()
    for number in [number for number in figures if number not in before]:
        sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(number)
    for number in before:
        if number in figures:
            figures.move_to_end(number)


# Logging

_Snapshot = dict[Any, tuple[Any, ...]]
_UNSET: tuple[Any, ...] = (logging.NOTSET, True, False, [], [])


def _logging() -> tuple[int, _Snapshot, _Snapshot]:
    """Return the general level, and what is set for each logger and each handler."""
    manager = logging.root.manager
    loggers = [logging.root, *(one for one in list(manager.loggerDict.values()) if isinstance(one, logging.Logger))]
    handlers = [handler for reference in list(logging._handlerList) if (handler := reference()) is not None]  # type: ignore[attr-defined]
    return (
        manager.disable,
        {one: (one.level, one.propagate, one.disabled, one.handlers[:], one.filters[:]) for one in loggers},
        {handler: (handler.level, handler.formatter, handler.filters[:]) for handler in handlers},
    )


def _set_logging(before: tuple[int, _Snapshot, _Snapshot]) -> None:
    """Put it back; a logger that is new is as new again, unless it is that of a module, which has set it up itself."""
    disable, loggers, handlers = before
    logging.disable(disable)
    for logger in _logging()[1]:
        if logger not in loggers and logger.name in sys.modules and logger.name != "__main__":
            continue
        logger.level, logger.propagate, logger.disabled, of_logger, filters = loggers.get(logger, _UNSET)
        for handler in logger.handlers:
            if handler not in handlers and isinstance(handler, logging.FileHandler):
                handler.close()
        logger.handlers[:], logger.filters[:] = of_logger, filters
    for handler, (level, formatter, filters) in handlers.items():
        handler.level, handler.formatter, handler.filters[:] = level, formatter, filters
    logging.root.manager._clear_cache()  # type: ignore[attr-defined]
