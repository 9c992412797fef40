"""Readings of power, energy and use: what tells them (one file each), and the arithmetic. No torch."""
