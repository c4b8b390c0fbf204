"""A profile as a batch job: the script or manifest around it, and submitting it.

`batch` makes a `Spec` from options and a site; `script` renders it with `launchers` and one module for each scheduler
(`pbs`, `slurm`); `scheduler` submits it. `k8s`, `kubectl` and `container` are for clusters and images. Called by the
command line and `bench`'s sweep. Standard library only: a login node needs nothing else.
"""
