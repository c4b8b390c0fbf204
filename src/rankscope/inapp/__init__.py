"""Inside the training process: count steps, run torch's profiler, write traces. Standard library and the
job's torch.
"""
