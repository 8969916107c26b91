"""Export the fits of a sweep as a LaTeX table."""
