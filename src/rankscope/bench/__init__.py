"""Workloads and traces with known answers."""
