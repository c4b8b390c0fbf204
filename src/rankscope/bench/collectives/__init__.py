"""A sweep over collectives and sizes, in the conventions of nccl-tests. The standard library and torch only.

kinds.py says what each collective is and what its result must be; sweep.py times them.
"""
