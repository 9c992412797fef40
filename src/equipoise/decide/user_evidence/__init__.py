"""What the user measured: runs, traces and collectives, read and held against the performance model."""
