"""What a notebook does with sweeps and results: the commands as methods, their tables as HTML, pictures of results."""
