"""JAX and XLA: .xplane.pb (`xplane`) and the .trace.json.gz beside it (`trace_json`).

Both are entries in the registry (`readers`). A recording that has both is read from the .xplane.pb, which is complete.
"""
