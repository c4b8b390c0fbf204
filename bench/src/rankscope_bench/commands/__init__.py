"""The commands that rankscope finds by the entry points `rankscope.bench_commands`."""
