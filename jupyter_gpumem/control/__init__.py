"""Acting on the allocator of the running process: its settings, its cache, its cap, memory put aside, audits."""
