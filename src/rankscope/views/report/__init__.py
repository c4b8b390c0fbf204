"""The report of a run: one self-contained HTML file, or a short version as Markdown."""
