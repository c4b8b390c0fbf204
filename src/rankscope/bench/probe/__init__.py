"""Is a device slow, or is its work? The same short tests on every rank's device, judged against each other.

`measure` runs the tests (torch only), `gpu_state` asks nvidia-smi and the kernel's log meanwhile, `judge` takes the
results of any number of ranks and nodes and names what is slow and why. Called by `cli/probe`.
"""
