"""The Python functions: a question in, a result out that shows itself. `equipoise/__init__.py` names them."""
