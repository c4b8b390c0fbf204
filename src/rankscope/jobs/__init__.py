"""The same profile as a batch job: what stands in the script around it, and how to hand it in.

Standard library only: a login node needs nothing else. One file a scheduler (pbs.py, slurm.py), one for the
launchers (launchers.py), one for what all scripts share (script.py), one for sites (sites.py);
k8s.py, kubectl.py and container.py for clusters and images.
"""
