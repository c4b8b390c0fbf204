"""Text that several packages read or write: untrusted text for a terminal, short names, spellings, commands with the
run's path, a small table, values as JSON, secrets in what is recorded.

Everything may import it. It imports the standard library, `errors`, `records` and `units` only.
"""
