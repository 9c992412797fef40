"""How to run what was advised: commands, training code, settings; and the rules of thumb it replaces."""
