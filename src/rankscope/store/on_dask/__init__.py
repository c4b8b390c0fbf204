"""Reading on a Dask cluster: one file, or one rank's part of it, is one task.

`ingest` calls `tasks.run_on_dask` as it calls `pool.run_tasks`. Only this package imports dask, distributed and
dask_jobqueue, when it is asked to: no other command waits for them.
"""
