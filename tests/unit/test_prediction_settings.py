"""Settings of the process that a prediction changes: each is afterwards as before, whatever it was set to before."""

from __future__ import annotations

import decimal
import gc
import locale
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from jupyter_gpumem.prediction import predict  # noqa: E402


def backends():
    names = ("enabled", "benchmark", "deterministic", "allow_tf32")
    cuda = torch.backends.cuda
    return (
        [getattr(torch.backends.cudnn, name) for name in names],
        torch.backends.mkldnn.enabled,
        torch.backends.mkldnn.deterministic,
        torch.backends.mha.get_fastpath_enabled(),
        [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()],
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
    )


def change_backends():
    for name in ("enabled", "benchmark", "deterministic", "allow_tf32"):
        setattr(torch.backends.cudnn, name, not getattr(torch.backends.cudnn, name))
    torch.backends.mkldnn.enabled = not torch.backends.mkldnn.enabled
    torch.backends.mkldnn.deterministic = not torch.backends.mkldnn.deterministic
    torch.backends.mha.set_fastpath_enabled(not torch.backends.mha.get_fastpath_enabled())
    cuda = torch.backends.cuda
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        getattr(cuda, f"enable_{name}_sdp")(not getattr(cuda, f"{name}_sdp_enabled")())
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        setattr(cuda.matmul, name, not getattr(cuda.matmul, name))


def precisions():
    of = torch.backends
    found = [of.fp32_precision, of.cudnn.fp32_precision, of.cudnn.conv.fp32_precision, of.cudnn.rnn.fp32_precision]
    return [
        *found,
        of.cuda.matmul.fp32_precision,
        of.mkldnn.matmul.fp32_precision,
        torch.get_float32_matmul_precision(),
    ]


def change_precisions():
    of = torch.backends
    owners = of, of.cudnn, of.cudnn.conv, of.cudnn.rnn, of.cuda.matmul
    wanted = ["tf32" if owner.fp32_precision != "tf32" else "ieee" for owner in owners]
    torch.set_float32_matmul_precision("medium" if torch.get_float32_matmul_precision() != "medium" else "high")
    for owner, precision in zip(owners, wanted, strict=True):
        owner.fp32_precision = precision


def of_torch():
    generic = torch.get_default_dtype(), torch._tensor_str.PRINT_OPTS.precision, torch.get_num_threads()
    modes = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.is_anomaly_enabled(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        torch.is_warn_always_enabled(),
        torch._C._is_multithreading_enabled(),
        torch.__future__.get_swap_module_params_on_conversion(),
        torch.distributions.Distribution._validate_args,
    )
    return (*generic, torch.backends.quantized.engine), modes, torch.multiprocessing.get_sharing_strategy()


def change_torch():
    torch.set_default_dtype(torch.float64 if torch.get_default_dtype() != torch.float64 else torch.float16)
    torch.set_printoptions(precision=torch._tensor_str.PRINT_OPTS.precision + 1)
    torch.set_num_threads(1 + torch.get_num_threads() % 2)
    torch.use_deterministic_algorithms(
        not torch.are_deterministic_algorithms_enabled(),
        warn_only=not torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.utils.deterministic.fill_uninitialized_memory ^= True
    torch.autograd.set_detect_anomaly(not torch.is_anomaly_enabled())
    torch.set_grad_enabled(not torch.is_grad_enabled())
    torch.set_autocast_enabled("cpu", not torch.is_autocast_enabled("cpu"))
    torch.set_autocast_enabled("cuda", not torch.is_autocast_enabled("cuda"))
    low = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", torch.bfloat16 if low == torch.float16 else torch.float16)
    torch.set_warn_always(not torch.is_warn_always_enabled())
    torch.autograd.set_multithreading_enabled(not torch._C._is_multithreading_enabled())
    swap = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(not swap)
    torch.distributions.Distribution.set_default_validate_args(not torch.distributions.Distribution._validate_args)
    other = {"file_system": "file_descriptor"}.get(torch.multiprocessing.get_sharing_strategy(), "file_system")
    torch.multiprocessing.set_sharing_strategy(other)
    engine = torch.backends.quantized.engine
    others = [one for one in torch.backends.quantized.supported_engines if one not in {engine, "none"}]
    torch.backends.quantized.engine = others[0] if others else engine


def of_compiling():
    import torch._dynamo.config

    compiler = torch._dynamo.eval_frame
    return torch._dynamo.config.suppress_errors, torch._dynamo.config.recompile_limit, compiler._stance.stance


def change_compiling():
    torch._dynamo.config.suppress_errors = not torch._dynamo.config.suppress_errors
    torch._dynamo.config.recompile_limit += 1
    stances = ["fail_on_recompile", "eager_on_recompile"]
    torch.compiler.set_stance(next(one for one in stances if one != torch._dynamo.eval_frame._stance.stance))


def of_python():
    hooks = (
        sys.excepthook,
        sys.displayhook,
        sys.unraisablehook,
        sys.gettrace(),
        sys.getprofile(),
        threading._trace_hook,
        threading.excepthook,
        warnings.showwarning,
        signal.getsignal(signal.SIGUSR1),
    )
    limits = sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), gc.get_threshold()
    place = dict(os.environ), os.getcwd(), locale.setlocale(locale.LC_ALL), time.tzname, list(sys.argv), list(sys.path)
    number = decimal.getcontext().prec, len(gc.callbacks), umask()
    return hooks, limits, place, number, warnings.filters[:], multiprocessing.get_start_method(allow_none=True)


def umask():
    before = os.umask(0)
    os.umask(before)
    return before


def change_python():
    os.umask(umask() ^ 0o7)
    sys.unraisablehook = lambda *_: None
    gc.callbacks.append(lambda *_: None)
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)
    threading.settrace(lambda *_: None)
    sys.excepthook = sys.displayhook = threading.excepthook = warnings.showwarning = lambda *_: None
    signal.signal(signal.SIGUSR1, lambda *_: None)
    sys.setrecursionlimit(sys.getrecursionlimit() + 1)
    sys.setswitchinterval(sys.getswitchinterval() * 2)
    (gc.disable if gc.isenabled() else gc.enable)()
    gc.set_threshold(gc.get_threshold()[0] + 1)
    os.environ["GPUMEM_TEST"], os.environ["TZ"] = "1", "Asia/Tokyo" if time.tzname[0] != "JST" else "UTC"
    time.tzset()
    os.chdir("/")
    locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) != "C.UTF-8" else "C")
    sys.argv.append("x")
    sys.path.append("x")
    decimal.getcontext().prec += 1
    warnings.filterwarnings("ignore", message=str(len(warnings.filters)))
    method = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn" if method != "spawn" else "fork", force=True)


def of_numpy():
    return numpy.get_printoptions()["precision"], numpy.geterr()


def change_numpy():
    numpy.set_printoptions(precision=numpy.get_printoptions()["precision"] + 1)
    numpy.seterr(all="raise" if numpy.geterr()["over"] != "raise" else "ignore")


def of_random():
    return random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def change_random():
    random.random()
    numpy.random.rand()
    torch.rand(1)


LOGGER, HANDLER = logging.getLogger("gpumem_test"), logging.NullHandler()
LOGGER.addHandler(HANDLER)


def of_logging():
    one = LOGGER
    return (
        [logging.root.level, logging.root.handlers[:], logging.root.manager.disable],
        [one.level, one.handlers[:], one.filters[:], one.propagate, one.disabled, one.isEnabledFor(logging.INFO)],
        [HANDLER.level, HANDLER.formatter],
    )


def change_logging():
    logging.basicConfig(level=logging.root.level + 1, force=True)
    logging.disable(logging.root.manager.disable + 1)
    LOGGER.setLevel(LOGGER.level + 1)
    LOGGER.addHandler(logging.StreamHandler())
    LOGGER.addFilter(lambda _: True)
    LOGGER.propagate, LOGGER.disabled = not LOGGER.propagate, not LOGGER.disabled
    HANDLER.setLevel(HANDLER.level + 1)
    HANDLER.setFormatter(logging.Formatter())


CASES = {
    "backends": (backends, change_backends),
    "precisions": (precisions, change_precisions),
    "torch": (of_torch, change_torch),
    "compiling": (of_compiling, change_compiling),
    "python": (of_python, change_python),
    "numpy": (of_numpy, change_numpy),
    "random": (of_random, change_random),
    "logging": (of_logging, change_logging),
}


@pytest.mark.parametrize("name", CASES)
def test_settings_are_as_before(name):
    """Also after errors, and also where they were not the defaults before: one prediction in another tells."""
    read, change = CASES[name]

    def failing():
        change()
        raise KeyboardInterrupt

    def code():
        change()
        inside = read()
        assert all(now != then for now, then in zip(inside, before, strict=True)), "all are changed"
        with pytest.raises(KeyboardInterrupt):
            predict(failing)
        assert read() == inside

    before = read()
    predict(code)
    assert read() == before


def test_loggers_that_are_new_do_not_keep_what_they_were_given(tmp_path):
    """Else the cell, when it is run for real, would log everything twice, and to a file that is gone."""

    def code():
        logger = logging.getLogger("gpumem_test.new")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(logging.FileHandler(tmp_path / "train.log"))
        logger.info("placeholder")
        assert "placeholder" in (tmp_path / "train.log").read_text()

    predict(code)
    logger = logging.getLogger("gpumem_test.new")
    assert (logger.handlers, logger.level) == ([], logging.NOTSET)
    assert list(tmp_path.iterdir()) == []


def test_figures_of_the_code_are_closed():
    """A notebook would show them; the one that was in use is so again."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    first, second = pyplot.figure(), pyplot.figure()

    def code():
        pyplot.figure(first.number)
        pyplot.figure().add_subplot().plot([1, 2])

    try:
        predict(code)
        assert pyplot.get_fignums() == [first.number, second.number]
        assert pyplot.gcf() is second
    finally:
        pyplot.close("all")


def test_a_second_interrupt_waits_until_all_is_as_before(ctrl_c, monkeypatch):
    """Ctrl-C is often pressed again while what the first one has stopped is put back."""
    before, folder, go, plain = sys.getrecursionlimit(), os.getcwd(), os.chdir, os.remove

    def interrupted(path):
        signal.raise_signal(signal.SIGINT)
        go(path)

    def code():
        go("/")
        sys.setrecursionlimit(before + 1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise ValueError

    monkeypatch.setattr(os, "chdir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        predict(code)
    assert (sys.getrecursionlimit(), os.getcwd(), os.remove) == (before, folder, plain)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
