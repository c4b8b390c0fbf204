"""What rankscope is tested with: simulated traces with known answers, the benchmark of blame, and the exam.

`rankscope bench synthetic`, `cluster`, `blame` and `exam` are here (commands). The generator (synthetic) and the cases
(blame) know nothing of how traces are read; the exam asks rankscope itself.
"""

__version__ = "0.2.0"
