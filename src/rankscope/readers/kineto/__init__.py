"""torch.profiler's JSON traces: finding the events, reading them in blocks, repairing damaged text.

`reader.KINETO` is the entry in `readers.READERS`; only the registry and the store call it. It may not import the store.
"""
