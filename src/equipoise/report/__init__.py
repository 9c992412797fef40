"""Findings shown: one HTML file (html.py) or a terminal (terminal.py). Computes nothing."""
