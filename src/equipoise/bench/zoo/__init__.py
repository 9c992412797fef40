"""Definitions of the models that can be trained by name, and their data. Everything here imports torch."""
