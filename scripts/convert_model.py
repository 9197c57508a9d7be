"""Rewrite adapters and models in other layouts, merge adapters into models, convert pickles to safetensors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.util.config.cli_names import add_part_option, known_word, part_settings  # noqa: E402
from modules.util.display import print_any_text  # noqa: E402
from modules.util.enum.choices import DataType, ModelFormat  # noqa: E402
from modules.util.enum.ModelType import ModelType  # noqa: E402
from modules.util.errors import ConfigError  # noqa: E402
from scripts.curate import exit_status  # noqa: E402

ADAPTERS = [name.value for name in ModelFormat if name.for_adapters]
MODELS = [ModelFormat.DIFFUSERS.value, ModelFormat.SAFETENSORS.value]


def _common(parser: argparse.ArgumentParser, formats: list[str], family: str) -> None:
    if formats:
        parser.add_argument("--to", type=str.upper, required=True, help=f"one of {', '.join(formats)}")
        parser.add_argument("--dtype", type=str.upper, help=f"{', '.join(DataType)}; as stored by default")
        parser.add_argument(
            "--family",
            type=str.upper,
            required=family == "",
            help=f"one of {', '.join(ModelType)}{family}",
        )
    parser.add_argument("--force", action="store_true", help="replace an existing target")


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    adapter = commands.add_parser("adapter", help="convert an adapter file to another layout")
    adapter.add_argument("source", type=Path)
    adapter.add_argument("target", type=Path)
    adapter.add_argument(
        "--base", type=Path, help="the model it is for: a folder, of which only configs are read, or a file"
    )
    _common(adapter, ADAPTERS, "; by default what the file says")
    merge = commands.add_parser("merge", help="merge an adapter into a model")
    merge.add_argument("base", help="diffusers folder, safetensors file or Hugging Face name")
    merge.add_argument("source", type=Path, metavar="adapter")
    merge.add_argument("target", type=Path)
    merge.add_argument("--strength", type=float, default=1.0, help="strength of the adapter, 1 by default")
    add_part_option(merge)
    _common(merge, MODELS, "")
    checkpoint = commands.add_parser(
        "checkpoint", help="convert a diffusers folder to one file, or the other way round"
    )
    checkpoint.add_argument("source", type=Path)
    checkpoint.add_argument("target", type=Path)
    add_part_option(checkpoint)
    _common(checkpoint, MODELS, "")
    unpickle = commands.add_parser(
        "pickle", help="convert the tensors of a .ckpt, .pt or .bin file to safetensors"
    )
    unpickle.add_argument("source", type=Path)
    unpickle.add_argument("target", type=Path)
    _common(unpickle, [], "")
    return parser.parse_args(argv)


def check(options: argparse.Namespace) -> None:
    """Check everything that can be checked before anything is read."""
    if options.command == "pickle":
        return
    formats = ADAPTERS if options.command == "adapter" else MODELS
    known_word(options.to, formats, "--to", "format")
    known_word(options.family, ModelType, "--family", "family")
    known_word(options.dtype, DataType, "--dtype", "type")
    if getattr(options, "part", None):
        part_settings(options.part, "--part", "model_name", options.family)
    strength = getattr(options, "strength", 1.0)
    if not -10.0 <= strength <= 10.0:
        raise ConfigError(f"{strength} is not between -10 and 10", "--strength")
    base = getattr(options, "base", None)
    if options.command == "adapter" and base is not None and not base.exists():
        raise ConfigError(f"{base} does not exist", "--base")


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> None:
    from modules.model.dtypes import torch_dtype
    from modules.modelSetup import converting

    folder = getattr(options, "to", "") == "DIFFUSERS"
    converting.clear_leftovers(options.target)
    converting.check_target(options.target, options.source, options.force, folder)
    if options.command == "pickle":
        converting.convert_pickle(options.source, options.target, report, options.force)
        return
    dtype = torch_dtype(options.dtype, "--dtype") if options.dtype else None
    sources: dict[str, str] = {}
    if options.command in ("merge", "checkpoint"):
        sources = part_settings(options.part, "--part", "model_name", options.family)
        for source in sources.values():
            converting.check_target(options.target, Path(source), options.force, folder)
    if options.command == "adapter":
        if options.base is not None:
            converting.check_target(options.target, options.base, options.force)
        converting.convert_adapter(
            options.source, options.target, options.to, options.family, options.base, dtype, report, options.force
        )
    elif options.command == "merge":
        converting.check_target(options.target, Path(options.base), options.force, folder)
        converting.merge_adapter(
            options.base,
            options.source,
            options.target,
            options.family,
            options.to,
            options.strength,
            dtype,
            report,
            sources,
            options.force,
        )
    else:
        converting.convert_checkpoint(
            str(options.source), options.target, options.family, options.to, dtype, report, sources, options.force
        )


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)

    def work() -> None:
        check(options)
        run(options)
        print(options.target)

    return exit_status(work)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
