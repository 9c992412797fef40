"""How wrong is it? Measured rows to executions, fits, profiles and error records; `validate`.

Rows: published/, accuracy, {step,scale_up}_rows, validate, profiles.
Times by size: curves, forecasts, advice_backtest.
Links: collective_runs, collective_verdicts, user_collectives, user_links.
"""
