"""Ascend's trace_view.json, as torch_npu's and MindSpore's profilers write it. `reader.ASCEND` is in the registry."""
