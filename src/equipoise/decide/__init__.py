"""What should I do? One question, one estimate of each candidate, one choice; read answer.py first."""
