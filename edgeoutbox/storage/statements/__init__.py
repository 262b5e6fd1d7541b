"""State changes and reads in the words that every database shares; the rooms of a backend hold what only it can say."""
