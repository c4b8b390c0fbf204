"""Nsight Systems: the sqlite export of a report, the .nsys-rep itself, and removing recorded secrets.

`reader.NSYS` and `report.NSYS_REPORT` are entries in the registry (`readers`); `cli.scrub` calls `scrub`.
"""
