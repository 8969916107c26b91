"""Tasks that reproduce one published paper each. Nothing outside imports them: they register by entry points."""
