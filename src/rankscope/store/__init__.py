"""The store: raw traces read once into Parquet, opened as a Run."""
