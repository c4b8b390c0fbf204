"""A run as one file that a timeline viewer opens: Perfetto's own format, or Chrome's JSON."""
