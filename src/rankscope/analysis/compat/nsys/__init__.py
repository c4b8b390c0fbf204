"""The reports of `nsys stats`, with its headings, rows and digits.

`reports.NSYS_REPORTS` lists them by nsys's own names; rows, sums, ranges and traces make them.
"""
