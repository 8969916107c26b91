"""The report: one HTML file with figures, tables and words."""
