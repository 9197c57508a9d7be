"""Families and modes described as data: no tensors, no loading, no settings. Imports nothing of the program."""
