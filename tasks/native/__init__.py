"""Training steps written in C++: kernels a family of networks, built where they run. Importable without torch."""
