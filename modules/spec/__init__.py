"""What exists, as data: no tensors, no loading, no settings. Imports nothing of the program."""
