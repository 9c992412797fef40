"""The command `equipoise`: verbs that call study and show what it found. `app.py` lists them."""
