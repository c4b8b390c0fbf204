"""A browser timeline of all ranks: a small server over the store, and plain ES modules that draw."""
