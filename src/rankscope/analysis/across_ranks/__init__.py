"""Reports that compare ranks: collectives and waits, stragglers and their cause, clocks, layout, pipeline bubbles.

Imports core. Needs matched collectives (timeline.collectives).
"""
