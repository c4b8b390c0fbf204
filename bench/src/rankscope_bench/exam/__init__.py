"""The exam: planted faults, real jobs, and how rankscope's answers are judged."""
