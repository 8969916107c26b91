"""Render the report: one HTML file with figures, tables and text."""
