"""Read sweep files and expand them into trials and packs. Imports only the contracts of `tasks`.

Start with `spec`, the typed sections of a sweep (read by `part`). `load` reads a file (`yaml_file`) with overrides,
`expand` makes trials, `studies` makes a search's trials (`search_space`), and `packing` groups trials into packs.
"""
