"""A run as one trace file for other viewers: Perfetto's protobuf format or Chrome's JSON."""
