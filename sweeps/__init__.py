"""What to run: sweep files, trials and packs; starts nothing. Imports the contracts of `tasks`, and nothing else of ours.

Begin with `spec`, the typed parts of a sweep (`part`: how one is read, and what is said of one that does not fit); `load`
makes it from a file (`yaml_file`), `expand` makes its trials, `studies` those of a search (`search_space`), `packing` cuts
them into packs.
"""
