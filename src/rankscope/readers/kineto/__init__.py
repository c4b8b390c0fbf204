"""torch.profiler's JSON traces: finding the events, reading them in blocks, repairing damaged text.

`reader.KINETO` is the entry in the registry (`readers`); the registry and the store call it.
"""
