"""Every kind of page, one module each.

Import a page's module directly, so that e.g. the page of an answer does not load the study.
"""
