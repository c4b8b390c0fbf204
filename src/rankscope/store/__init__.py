"""The store: raw traces are read once into Parquet (`ingest`) and opened as a `run.Run`.

Analyses, views and front ends call those two modules. The store imports readers, and nothing above itself.
"""
