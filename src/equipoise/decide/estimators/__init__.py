"""Estimators of times: published results, the user's measurements, the performance model."""
