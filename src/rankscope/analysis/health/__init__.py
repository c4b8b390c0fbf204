"""Can the recording be trusted (`doctor`), and why does a job hang (`flight`, from flight-recorder dumps).

Imports core and within_rank.
"""
