"""The commands. Every command has one module with the same name."""
