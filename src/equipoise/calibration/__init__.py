"""How wrong is it? Measured rows to executions, fits, profiles and error records; `validate`."""
