"""How wrong were we? Predictions that were made, what was measured later, and the running error."""
