"""The ranks of a benchmark: start them on this machine, or join those that a launcher has started."""
