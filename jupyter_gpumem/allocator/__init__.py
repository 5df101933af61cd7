"""A model of PyTorch's CUDA caching allocator in pure Python: the same decisions, to the byte, without a GPU.

`settings` are PyTorch's options, `model` is the allocator itself, `driver` what it gets its segments from, `trace` and
`replay` run a recorded sequence of events through it.
"""
