"""An open benchmark of blame: simulated jobs with a fault each, and the score of any tool's answers.

`planting` puts a fault of a wanted size into a job (the exam uses it too), `cases` lists the jobs of a seed, `make`
writes their traces and the truth, `score` compares answers with it. docs/accuracy.md has the task and the results.
"""
