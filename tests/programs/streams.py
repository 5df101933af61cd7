"""Streams, events, prefetching, counters and profilers."""

import torch

a = torch.randn(512, 512, device="cuda")
s = torch.cuda.Stream()
st = torch.cuda.Event(enable_timing=True)
en = torch.cuda.Event(enable_timing=True)
st.record()
with torch.cuda.stream(s):
    b = a @ a
    b.record_stream(torch.cuda.current_stream())
torch.cuda.current_stream().wait_stream(s)
en.record()
torch.cuda.synchronize()
print(st.elapsed_time(en) >= 0)
s.synchronize()
s.query()
en.synchronize()
en.wait(s)
print(torch.cuda.current_stream(), torch.cuda.default_stream())


class Prefetch:
    def __init__(s, l):
        s.l = iter(l)
        s.s = torch.cuda.Stream()
        s.pre()

    def pre(s):
        try:
            s.n = next(s.l)
        except StopIteration:
            s.n = None
            return
        with torch.cuda.stream(s.s):
            s.n = [t.cuda(non_blocking=True) for t in s.n]

    def __iter__(s):
        while s.n is not None:
            torch.cuda.current_stream().wait_stream(s.s)
            b = s.n
            for t in b:
                t.record_stream(torch.cuda.current_stream())
            s.pre()
            yield b


dl = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(32, 4), torch.arange(32)),
    8,
    pin_memory=True,
    num_workers=2,
    persistent_workers=True,
    prefetch_factor=2,
)
for x, y in Prefetch(dl):
    assert x.is_cuda and y.is_cuda
for x, y in dl:
    assert x.is_pinned()
print(torch.cuda.memory_summary()[:200])
print(torch.cuda.mem_get_info())
print(torch.cuda.get_device_properties(0))
print(torch.cuda.get_device_name(), torch.cuda.get_device_capability(), torch.cuda.utilization)
with torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
) as prof:
    (a @ a).sum()
print(prof.key_averages().table(row_limit=3)[:100])
import torch.utils.benchmark as tb

print(tb.Timer("a@a", globals={"a": a}).timeit(5).mean > 0)
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
torch.cuda.ipc_collect()
with torch.cuda.nvtx.range("x"):
    a.sum()
print(
    torch.cuda.is_bf16_supported(),
    torch.backends.cuda.matmul.allow_tf32,
    torch.backends.cudnn.version(),
    torch.backends.cudnn.is_available(),
)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.deterministic = True
torch.use_deterministic_algorithms(True, warn_only=True)
(a @ a)
torch.use_deterministic_algorithms(False)
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
with torch.random.fork_rng(devices=[0]):
    torch.randn(1, device="cuda")
print(torch.cuda.memory_stats()["allocated_bytes.all.peak"] > 0)
