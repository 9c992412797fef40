"""Every kind of page, one module each: accuracy, answer, compared, reach, study, sweep, topology, watched.

A module is imported by who shows its page: a page of an answer loads nothing of the study.
"""
