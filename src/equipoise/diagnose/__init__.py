"""Interpretation of measurements: links, sweeps, watched runs, steps and stragglers as findings."""
