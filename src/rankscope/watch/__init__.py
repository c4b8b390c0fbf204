"""The telemetry of a job, read from outside while it runs or afterwards: ring files, judging, alarms, the live view.

`inapp` writes the ring files inside the job. Used by `analysis` (reports), `viewer` and `cli`; imports nothing above
`capture`. Nothing here prints.
"""
