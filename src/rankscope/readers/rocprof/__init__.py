"""ROCm's profilers: rocpd databases (rocprofv3 of ROCm 7, rocprof-sys) and rocprofv3's JSON.

`rocpd.ROCPD` and `tool_json.ROCPROF_JSON` are the entries in the registry; `records` has what both formats share.
"""
