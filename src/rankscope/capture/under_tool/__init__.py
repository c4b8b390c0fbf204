"""One rank under nsys or ncu: `tool_rank` runs it, with checks beforehand (`preflight`), the profiler as a
child process (`tool_process`), its temporary files and its reports.

`app_start.py` runs as a script between the profiler and the application. Called by `capture.start`.
"""
