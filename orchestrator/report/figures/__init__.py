"""The report's figures, a file a theme."""
