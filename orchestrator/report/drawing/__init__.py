"""Figures drawn by matplotlib, as SVG and PDF: for a screen, or for a paper."""
