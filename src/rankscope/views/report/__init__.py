"""The report of a run: one HTML file that asks for nothing from elsewhere, or the same in short as Markdown."""
