"""Which rank am I, is it wanted, and how is it started: standard library only, no torch, quick to import."""
