"""The wrapper around a training command: which rank is this, is it selected, how is it started.

Called by `rankscope profile` and, inside the job, by inapp. Standard library only, no torch, quick to import: an
unselected rank loads only `wrapper`, `plan`, `rank`, `schedule` and `selector`. Nothing here prints; messages go
through `wrapper.Output`.
"""
