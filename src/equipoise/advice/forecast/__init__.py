"""How long will it take? Times at sizes nobody ran, from published results and the user's own."""
