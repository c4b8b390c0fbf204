"""Checks of a recording (`doctor`), and the cause of a hang from flight-recorder dumps (`flight`).

Imports core and within_rank.
"""
