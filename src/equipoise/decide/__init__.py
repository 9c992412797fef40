"""Decides what to do: from a question to candidates, estimates and a selection; read answer.py first."""
