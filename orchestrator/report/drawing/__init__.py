"""Render figures with matplotlib as SVG and PDF, for a screen or a paper."""
