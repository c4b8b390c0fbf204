"""Inside the training process: count steps, run torch's profiler, write traces; annotations, timers and memory.

The public names are exported by `rankscope`; the bootstrap starts a capture with no code change. Standard library
and the job's own torch only. A failure in here ends the capture, never the job.
"""
