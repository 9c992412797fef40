"""What to do: theory meets measured and published evidence here, and only here."""
