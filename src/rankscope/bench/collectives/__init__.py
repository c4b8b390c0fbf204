"""A sweep over collectives and sizes, in the conventions of nccl-tests. Standard library and torch only.

kinds.py defines each collective and its expected result, sweep.py times them, report_text.py makes the table.
"""
