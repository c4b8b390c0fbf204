"""A run as files for other tools: a trace in Perfetto's own format or Chrome's JSON, or its tables."""
