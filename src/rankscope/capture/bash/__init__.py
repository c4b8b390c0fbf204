"""Reads a bash script without running it: its variables, and which commands run on which ranks.

It knows what wrappers around profilers use. What it does not know stays visible: a value that is only known when the
script runs is a mark with its source, and a condition on anything but ranks is kept as text.
"""
