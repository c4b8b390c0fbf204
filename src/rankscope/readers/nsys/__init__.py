"""Nsight Systems: the sqlite export of a report, the .nsys-rep itself, and removing recorded secrets.

`reader.NSYS` and `report.NSYS_REPORT` are in `readers.READERS`; `cli.scrub` calls `scrub`. It may not import the store.
"""
