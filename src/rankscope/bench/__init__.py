"""Workloads and traces with known answers: seqpar runs a small sequence-parallel loop, synthetic writes traces."""
