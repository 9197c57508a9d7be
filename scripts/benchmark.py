"""Measure Tastemaker: ratios between alternatives timed side by side in one process, with their limits.

scripts/benchmark.py step --json step.json
"""

from __future__ import annotations

import argparse
import ast
import importlib
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from modules.util.display import print_any_text  # noqa: E402
from modules.util.errors import UserError  # noqa: E402
from modules.util.files.result_file import check_result_file, json_with  # noqa: E402
from modules.util.jsonio import write_json  # noqa: E402

VERSIONS = ("torch", "diffusers", "transformers", "peft", "numpy", "pillow")


def discover() -> dict[str, str]:
    """Names of the benchmarks with the first line of their docstrings, without importing them."""
    found = {}
    for path in sorted((ROOT / "scripts" / "benchmarks").glob("[!_]*.py")):
        summary = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem] = summary.partition("\n")[0]
    return found


def parser_of(known: dict[str, str]) -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:<10} {summary}" for name, summary in known.items())
    parser = argparse.ArgumentParser(
        prog="benchmark.py",
        description="Ratios between alternatives, timed side by side in one process.",
        epilog=f"benchmarks:\n{listing}\n\n'benchmark.py NAME --help' lists the options of one",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("name", nargs="?", choices=sorted(known), metavar="NAME", help="which benchmark")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a limit is exceeded")
    parser.add_argument("-h", "--help", action="store_true", help="show this and exit")
    return parser


def machine() -> dict[str, Any]:
    """Return the facts that the figures depend on: processor, system, versions, date."""
    versions: dict[str, str | None] = {}
    for name in VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    known = discover()
    parser = parser_of(known)
    common, _ = parser.parse_known_args(arguments)
    if common.name is None:
        parser.print_help()
        return 0 if common.help else 2
    benchmark = importlib.import_module(f"scripts.benchmarks.{common.name}")
    own = argparse.ArgumentParser(
        prog=f"benchmark.py {common.name}", description=known[common.name], parents=[parser], add_help=False
    )
    benchmark.add_arguments(own)
    if common.help:
        own.print_help()
        return 0
    options = own.parse_args(arguments)
    is_result = json_with("machine")
    if options.json is not None:
        check_result_file(options.json, "--json", is_result)
    results = benchmark.run(options)
    from scripts.benchmarks._measure import table

    print(getattr(benchmark, "table", table)(results))
    if options.json is not None:
        check_result_file(options.json, "--json", is_result)
        write_json(options.json, [result.to_dict() | {"machine": machine()} for result in results])
    over = [result for result in results if not result.within]
    # what must never happen is a failure unasked
    return 1 if over and (options.check or getattr(benchmark, "STRICT", False)) else 0


if __name__ == "__main__":
    print_any_text()
    try:
        sys.exit(main())
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
