"""What a paper says of a sweep, as LaTeX: the table of its rates and a paragraph on how they came about."""
