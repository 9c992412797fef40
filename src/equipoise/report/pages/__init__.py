"""Every kind of page, one module each.

A module is imported by who shows its page: a page of an answer loads nothing of the study.
"""
