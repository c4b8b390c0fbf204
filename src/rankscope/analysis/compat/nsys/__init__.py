"""The reports of `nsys stats`, with the same headings, rows and digits.

`reports.NSYS_REPORTS` lists them by their names in nsys; the other modules implement them.
"""
