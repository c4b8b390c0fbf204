"""One rank under nsys or ncu: checks beforehand, the supervised start, temporary files, and the reports left behind.

Standard library only. `app_start.py` runs as a script between the profiler and the application.
"""
