"""Meaning: events into slices, links, steps, collectives; clocks; and `Run`, segments as tables on one time axis.

Called by everything above. Imports readers and store: `store` is handed `reading.read_trace` and knows no meaning.
"""
