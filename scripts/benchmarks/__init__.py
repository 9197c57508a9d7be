"""Benchmarks, one file each; the name of the file is the name of the subcommand.

A benchmark module has a docstring (its first line is its help), ``add_arguments(parser)`` and
``run(arguments) -> list[Result]``. Files that begin with an underscore are shared by them.
"""
