"""Training measurements as papers and repositories publish them: a row a figure, in whatever unit they chose.

Rows become executions: what ran, on what, with which strategy, and how many seconds it took.
"""
