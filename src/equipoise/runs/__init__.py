"""What was seen? Tables of runs and scores, their readers, writers and store. No statistics live here."""
