"""Perfetto's own traces (protobuf): packets are read twice, and their events rewritten as Kineto's JSON.

`reader.PERFETTO` is the entry in the registry (`readers`); the registry and the store call it.
"""
