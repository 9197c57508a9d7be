"""The taste loop without a window: make images, pick, train, compare the result, and start the next round."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.arena.Arena import USUAL_VOTES, Arena, Ballot  # noqa: E402
from modules.arena.ArenaServer import ArenaServer  # noqa: E402
from modules.arena.folders import check_folders, contestants_of_folders  # noqa: E402
from modules.arena.tally import Tally  # noqa: E402
from modules.arena.VoteStore import VoteStore  # noqa: E402
from modules.curation.choosing.base import DEFAULT_THRESHOLD  # noqa: E402
from modules.curation.CurationMode import DEFAULT_MODE, CurationMode  # noqa: E402
from modules.curation.group_state import SessionSettings  # noqa: E402
from modules.curation.intake.edit_sources import NO_EDITS  # noqa: E402
from modules.generator.ComfyUi import SLOTS, check_places  # noqa: E402
from modules.generator.registry import GENERATORS  # noqa: E402
from modules.project.beginning import demo_settings, on_each_image  # noqa: E402
from modules.project.candidates.adding import add_images, add_prompts, images_in, use_workflow  # noqa: E402
from modules.project.from_images import Proposal, propose  # noqa: E402
from modules.project.judging import judge, judgements_of  # noqa: E402
from modules.project.making import MOST_PROMPTS, USUAL_PER_PROMPT, generate  # noqa: E402
from modules.project.picking import round_to_pick_from, serve_picks  # noqa: E402
from modules.project.presets import find_preset  # noqa: E402
from modules.project.Project import ARENA, Project  # noqa: E402
from modules.project.ProjectFile import CARDS, NAME  # noqa: E402
from modules.project.prompts import Prompts  # noqa: E402
from modules.project.proving import USUAL_QUESTIONS, adapters_between, open_arena, tally_of  # noqa: E402
from modules.project.rounds import SURPLUS, new_round, next_step, status  # noqa: E402
from modules.project.share.card import About  # noqa: E402
from modules.project.share.publishing import publish, upload  # noqa: E402
from modules.project.taste_head import learn  # noqa: E402
from modules.project.training import Method, train  # noqa: E402
from modules.spec.registry import FAMILIES  # noqa: E402
from modules.util.display import counted, print_any_text  # noqa: E402
from modules.util.errors import ConfigError, UserError  # noqa: E402
from modules.util.files.user_path import user_path  # noqa: E402
from modules.util.jsonio import read_json  # noqa: E402
from modules.util.owned_files import shown  # noqa: E402
from scripts.curate import ProgressLine, add_edits, edit_options, exit_status, positive  # noqa: E402

Options = argparse.Namespace
Json = dict[str, Any]
GENERATOR_OPTIONS = ("device", "url", "remote", "checkpoint", "lora_folder")
MOVABLE = ("json", "base_model", "device", "url", "remote", "lora_folder")
"""Options that may differ between computers."""
USUAL_TYPE = "STABLE_DIFFUSION_15"
USUAL_NEAR_DUPLICATES = 2
IMAGE_OPTIONS = {
    "width": int, "height": int, "steps": int, "cfg": float, "sampler": str, "negative": str,
    "source_resolution": int,
}  # fmt: skip


def run_new(options: Options, progress: ProgressLine) -> Json:
    generator = generator_of(options)
    if (options.dir / NAME).is_file():
        return move(options, generator)
    if options.prompts is None and options.to_edit is not None:
        raise UserError(
            "there are no prompts that say how to edit the source images",
            "--prompts",
            "name a text file of them",
        )
    found, places = None, edit_options(options)
    places.check()
    if options.images is not None:
        found = propose(
            options.images, options.generator or "", options.base_model, options.model_type, places
        )
    elif places != NO_EDITS:
        raise UserError(
            "source images are given, but no edits", "--images", "name a folder of edits"
        )
    if options.propose:
        if found is None:
            raise UserError("there is nothing to read", "--images", "name a folder of images")
        return {"proposed": found.to_dict()}
    if options.prompts is None and found is None:
        raise UserError("a project needs prompts", "--prompts", "name a text file with one prompt per line")
    project = Project.create(
        options.dir, settings_of(options, generator, found), prompts_of(options, found), options.adapter
    )
    made: Json = {
        "project": str(project.folder),
        "prompts": len(project.tasks()),
        "held_out": len(project.file.held_out),
        "preset": find_preset(project.file).name,
        "next": next_step(project),
    }
    if project.file.edits:
        made["sources"] = len({one.task.source for one in project.given()})
    return made if found is None else {**made, "proposed": found.to_dict()}


def prompts_of(options: Options, found: Proposal | None) -> Prompts:
    """The given prompts file, otherwise the prompts of the images, with what they edit."""
    if found is None or options.prompts is not None:
        given: Path = options.prompts
        return given if options.to_edit is None else on_each_image(given, options.to_edit)
    return found.edits or "\n".join(found.prompts)


def settings_of(options: Options, generator: Json, found: Proposal | None) -> Json:
    """The settings of the command line; missing ones come from the images."""
    base = options.base_model or (found.base if found else "")
    if not base:
        said = f"the images name {found.model!r}, which is not found here" if found and found.model else ""
        raise UserError(
            "a project needs a base model" + (f": {said}" if said else ""),
            "--base-model",
            "name a folder, a file or a model on the hub",
        )
    kind = options.model_type or (found.model_type if found else USUAL_TYPE)
    if not kind:
        raise UserError(
            f"{shown(base)} does not say which type of model it is",
            "--model-type",
            f"one of {', '.join(FAMILIES)}",
        )
    place = user_path(base, "--base-model")
    base = str(place.resolve()) if place.exists() else base
    image = {name: getattr(options, name) for name in IMAGE_OPTIONS if getattr(options, name) is not None}
    made_by = {"kind": options.generator or "own", **(found.generator if found else {}), **generator}
    usual = demo_settings(base) if made_by["kind"] == "own" else {}
    if made_by["kind"] == "comfyui" and made_by.get("workflow"):
        check_places(made_by["workflow"], made_by.get("slots", {}), list(image))
    near = options.near_duplicates
    return {
        "model": {"type": kind, "base": base},
        "generator": made_by,
        "image": {**usual.get("image", {}), **(found.image if found else {}), **image},
        "card": options.card,
        "preset": options.preset,
        "seed": options.seed,
        "near_duplicates": usual.get("near_duplicates", USUAL_NEAR_DUPLICATES) if near is None else near,
    }


def generator_of(options: Options) -> Json:
    """The generator settings of the command line."""
    made = {name: value for name in GENERATOR_OPTIONS if (value := getattr(options, name))}
    if options.workflow is not None:
        made["workflow"] = read_json(options.workflow, "workflow")
    slots = dict(text.partition("=")[::2] for text in options.slot)
    for name in slots.keys() - set(SLOTS):
        raise ConfigError(f"there is no slot {name!r}", "--slot", f"known: {', '.join(SLOTS)}")
    return made | ({"slots": slots} if slots else {})


def move(options: Options, generator: Json) -> Json:
    """Change an existing project; only settings that differ between computers are allowed."""
    usual = vars(make_parser().parse_args(["new", str(options.dir)]))
    fixed = [name for name, value in vars(options).items() if value != usual[name] and name not in MOVABLE]
    if fixed:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in fixed)
        raise UserError(
            f"{options.dir} is already a project, in which {names} cannot change",
            "DIR",
            "choose a new folder; in an existing project only --base-model, --device, --url, --remote and "
            "--lora-folder can change",
        )
    project = Project(options.dir)
    project.move_base(options.base_model, generator)
    return {"project": str(project.folder), "base_model": project.file.model.base, "next": next_step(project)}


def run_generate(options: Options, progress: ProgressLine) -> Json:
    project = Project(options.dir)
    adapter = None if options.adapter is None else project.adapter(options.adapter)
    if options.strength is not None:
        adapter = (adapter or project.newest).at(options.strength)
    made = generate(project, progress, options.per_prompt, adapter, options.prompts)
    return {**made, "next": next_step(project)}


def run_pick(options: Options, progress: ProgressLine) -> Json | None:
    project = Project(options.dir)
    one = round_to_pick_from(project)
    asked = {
        "--mode": options.mode, "--pairs-per-group": options.pairs_per_group, "--threshold": options.threshold,
    }  # fmt: skip
    given = [name for name, value in asked.items() if value is not None]
    if given and not options.headless:
        raise ConfigError("only acts with --headless", given[0], "choose it on the start page of the pair tool")
    if not options.headless:
        from modules.ui.curation.windows import main as pair_tool

        pair_tool(["--pair-tool", str(one.candidates), "--pairs-folder", str(one.pairs)])
        return {"round": one.number, "pairs": one.pair_count, "next": next_step(project)}
    settings = SessionSettings(
        CurationMode(options.mode or DEFAULT_MODE),
        options.pairs_per_group or 1,
        DEFAULT_THRESHOLD if options.threshold is None else options.threshold,
        project.file.seed,
    )
    serve_picks(project, settings, sys.stdin.buffer, sys.stdout, progress)
    return None


def run_train(options: Options, progress: ProgressLine) -> Json:
    project = Project(options.dir)
    method = None if options.method is None else Method(options.method)
    made = train(project, progress, options.overrides, options.again, method, progress.end)
    return {**made, "next": next_step(project)}


def run_learn(options: Options, progress: ProgressLine) -> Json:
    return learn(Project(options.dir), progress)


def run_status(options: Options, progress: ProgressLine) -> Json:
    return status(Project(options.dir))


def run_describe(options: Options, progress: ProgressLine) -> Json:
    generator = Project(options.dir).generator()
    folder = generator.adapter_folder()
    return {**asdict(generator.describe()), "adapter_folder": None if folder is None else str(folder)}


def run_next(options: Options, progress: ProgressLine) -> Json:
    project = Project(options.dir)
    return {**new_round(project, options.per_prompt, options.surplus), "next": next_step(project)}


def run_add(options: Options, progress: ProgressLine) -> Json:
    project = Project(options.dir)
    if not (options.files or options.prompts or options.workflow):
        raise UserError("there is nothing to add", "FILE", "name images, --prompts or --workflow")
    made: Json = {}
    if options.workflow is not None:
        use_workflow(project, read_json(options.workflow, "workflow"))
        made["generator"] = project.file.generator["kind"]
    if options.prompts is not None:
        made["prompts"] = add_prompts(project, options.prompts)
    if options.files:
        gone = [file for file in options.files if not file.exists()]
        if gone:
            raise UserError(f"there is no file {shown(gone[0])}", "FILE", "check the path")
        made |= asdict(add_images(project, images_in(options.files), edit_options(options)))
    return {**made, "next": next_step(project)}


def run_publish(options: Options, progress: ProgressLine) -> Json:
    if options.upload:
        return upload(options.out, options.upload, options.public)
    about = About(
        options.title,
        options.author,
        options.license,
        options.description,
        options.trigger,
        options.base_name,
    )
    made = publish(Project(options.dir), options.out, about, progress, options.adapter)
    return {**made, "next": "look at the folder; to upload it, run publish again with --upload OWNER/NAME"}


def folders_between(text: str) -> list[tuple[str, Path]]:
    """Parse ``[NAME=]FOLDER,[NAME=]FOLDER`` into names and folders."""
    found = []
    for part in text.split(","):
        name, equals, folder = part.strip().rpartition("=")
        place = user_path(folder, "--between")
        name = name.strip() if equals else place.resolve().name
        if not name or not folder:
            raise UserError(
                f"{part!r} is not NAME=FOLDER", "--between", "for example before=FOLDER,after=FOLDER"
            )
        found.append((name, place))
    return found


@contextmanager
def arena_of(options: Options, progress: ProgressLine) -> Iterator[Arena]:
    """Open the arena with the adapters of a project, or with folders of images if there is no project."""
    if (options.dir / NAME).is_file():
        project = Project(options.dir)
        adapters = adapters_between(project, options.between)
        with open_arena(project, adapters, progress, options.votes, options.images) as arena:
            yield arena
        return
    if not options.between:
        raise UserError(f"{options.dir} is not a project", "--between", "name the folders to compare")
    named, place = folders_between(options.between), options.dir / ARENA
    if not place.exists():
        check_folders(named)
    with VoteStore(place) as store:
        contestants = contestants_of_folders(named, place, progress.end)
        yield Arena(store, contestants, options.seed, options.votes)


def run_compare(options: Options, progress: ProgressLine) -> Json | None:
    if options.result and not (options.headless or options.prepare) and (options.dir / NAME).is_file():
        project = Project(options.dir)  # its images may be missing: they are not needed
        return result_of(tally_of(project, adapters_between(project, options.between)), options)
    with arena_of(options, progress) as arena:
        if options.headless:
            ArenaServer(arena, sys.stdin.buffer, sys.stdout).serve()
            return None
        if not (options.result or options.prepare):
            vote_at_terminal(arena)
        return result_of(arena.tally, options)


def result_of(tally: Tally, options: Options) -> Json:
    """The result of the votes so far, or what to do if there are none."""
    told = {**tally.to_dict(), **automatic(options)}
    if not tally.votes and (options.result or options.prepare):
        told["next"] = f"to vote, run compare without --{'prepare' if options.prepare else 'result'}"
    return told


def automatic(options: Options) -> Json:
    """Verdicts of automatic judges on these contestants, if they were asked."""
    if not (options.dir / NAME).is_file():
        return {}
    project = Project(options.dir)
    found = judgements_of(project, adapters_between(project, options.between))
    return {"automatic": found} if found else {}


def run_judge(options: Options, progress: ProgressLine) -> Json:
    project = Project(options.dir)
    models = {name: value for name in ("clip", "pickscore") if (value := getattr(options, name))}
    adapters = adapters_between(project, options.between)
    return {"automatic": judge(project, adapters, progress, options.images, models)}


def vote_at_terminal(arena: Arena) -> None:
    """Ask until there are no more questions, the person stops or the input ends."""
    acts: dict[str, Callable[[], None]] = {
        "1": lambda: arena.answer(0),
        "2": lambda: arena.answer(1),
        "=": lambda: arena.answer(None),
        "s": lambda: arena.answer(None, skipped=True),
        "u": arena.undo,
    }
    while (ballot := arena.ballot) is not None:
        said = ask(ballot, arena.tally.votes)
        if said in ("q", ""):
            return
        try:
            acts[said]()
        except KeyError:
            print(f"unknown answer {said!r}", file=sys.stderr)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)


def ask(ballot: Ballot, votes: int) -> str:
    """Print one question on stderr; return the typed answer, empty at the end of the input."""
    print(f"\n{votes + 1}. {ballot.prompt}", file=sys.stderr)
    for path in ballot.sources:
        print(f"  source  {path}", file=sys.stderr)
    for number, path in enumerate(ballot.show, start=1):
        print(f"  {number}  {path}", file=sys.stderr)
    print("better: 1 or 2, = a tie, s skip, u undo, q stop > ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.strip().lower() or ("?" if line else "")


def lines(result: Json) -> str:
    """Format a result for people."""
    if "sentence" in result or "automatic" in result:
        said = [str(result["sentence"])] if "sentence" in result else []
        said += [f"next: {result['next']}"] if "next" in result else []
        judged = result.get("automatic", [])
        said += [f"automatic, not your votes: {text}" for one in judged for text in one["sentences"]]
        return "\n".join(said)
    rows = [
        f"round {number}: {_images(row)}, {counted(row['answers'], 'answer')}, "
        f"{counted(row['pairs'], 'pair')}, {counted(row['steps'], 'step')}"
        + (f", {row['adapter']}" if row["adapter"] else "")
        + (f"\n  {row['arena']['sentence']}" if row["arena"] else "")
        for number, row in enumerate(result.get("rounds", []), start=1)
    ]
    rest = {name: value for name, value in result.items() if name != "rounds" and value is not None}
    rows += [f"{name}: {_line(value)}" for name, value in rest.items()]
    return "\n".join(rows)


def _images(row: Json) -> str:
    """The images of a round: those that are planned and made, and those that were added."""
    made = f"{row['candidates']} of {row['planned']} images"
    added = counted(row["added"], "added image")
    return made if not row["added"] else f"{made}, {added}" if row["planned"] else added


def _line(value: Any, margin: str = "\n  ") -> str:
    """Format a value of a result; nested values are indented below its name."""
    if isinstance(value, dict):
        said = {name: one for name, one in value.items() if one not in (None, "", [], {})}
        return "".join(f"{margin}{name}: {_line(one, margin + '  ')}" for name, one in said.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="taste.py",
        description=__doc__,
        epilog="Each step can be stopped at any moment and run again. Results are on stdout, progress, questions "
        "and errors on stderr. Exit status: 0 done, 2 an error that you can fix, 130 stopped.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")

    def verb(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        made.add_argument("dir", type=Path, metavar="DIR", help="the project's folder")
        made.add_argument("--json", action="store_true", help="print the result as JSON")
        return made

    add_new(
        verb(
            "new",
            run_new,
            "make a project; for an existing project, say where the base model is on this computer",
        )
    )
    command = verb("generate", run_generate, "make the missing images of the round")
    command.add_argument("--per-prompt", type=positive, metavar="N",
                         help=f"images for each prompt ({USUAL_PER_PROMPT})")  # fmt: skip
    command.add_argument("--prompts", type=positive, metavar="N",
                         help=f"number of prompts in the first round ({MOST_PROMPTS})")  # fmt: skip
    command.add_argument("--adapter", help="none, last, round-N or a file; by default last")
    command.add_argument("--strength", type=float, metavar="S", help="strength of the adapter (1)")
    command = verb("pick", run_pick, "open the pair tool on the round's images")
    command.add_argument("--headless", action="store_true", help="JSON lines on stdin and stdout")
    command.add_argument("--mode", choices=list(CurationMode),
                         help=f"with --headless: way of choosing ({DEFAULT_MODE})")  # fmt: skip
    command.add_argument("--pairs-per-group", type=positive, metavar="N",
                         help="with --headless: pairs of a prompt before the next prompt (1)")  # fmt: skip
    command.add_argument(
        "--threshold", type=float, help=f"with --headless: certainty at which a pair is saved ({DEFAULT_THRESHOLD})"
    )
    add_train(verb("train", run_train, "train an adapter on the round's picks, or resume it"))
    verb("learn", run_learn, "learn your taste from all answers, and measure how well your picks are predicted")
    add_compare(verb("compare", run_compare, "vote blindly on images of the same prompts and seeds"))
    add_judge(
        verb("judge", run_judge, "have automatic judges rate the same images: liking, fidelity, variety")
    )
    add_publish(verb("publish", run_publish, "write a folder for sharing the adapter, or upload it"))
    verb("describe", run_describe, "list version, models, adapters and samplers of the generator")
    verb("status", run_status, "show the rounds and what comes next")
    command = verb("next", run_next, "start the next round")
    command.add_argument(
        "--per-prompt", type=positive, metavar="N", help="images for each prompt (as before)"
    )
    command.add_argument(
        "--surplus", type=positive, default=SURPLUS, metavar="N",
        help="with a learned taste, make N times as many images and show those that the taste is least sure about "
        f"({SURPLUS}; 1 shows all)",
    )  # fmt: skip
    add_add(verb("add", run_add, "add images to pick from, prompts, or the workflow that makes images"))
    return parser


def add_train(command: argparse.ArgumentParser) -> None:
    command.add_argument("--set", dest="overrides", action="append", default=[], metavar="NAME=VALUE",
                         help="change a setting of the training")  # fmt: skip
    command.add_argument(
        "--method", choices=list(Method),
        help="pairs (the default), or taste: a taste learned from all answers judges the model's new images",
    )  # fmt: skip
    command.add_argument("--again", action="store_true", help="discard the training of this round and train again")


def add_add(command: argparse.ArgumentParser) -> None:
    command.add_argument("files", type=Path, nargs="*", metavar="FILE", help="images, or folders of them")
    add_edits(command)
    command.add_argument(
        "--prompts", type=Path, metavar="FILE", help="prompts that prompts.txt does not have yet"
    )
    command.add_argument(
        "--workflow", type=Path, metavar="FILE",
        help="a workflow of ComfyUI in API format, for a project without images",
    )  # fmt: skip


def add_new(command: argparse.ArgumentParser) -> None:
    command.add_argument("--base-model", default="", metavar="M", help="folder, file or name on the hub")
    command.add_argument("--model-type", type=str.upper, default="", help=f"({USUAL_TYPE})")
    command.add_argument(
        "--images", type=Path, metavar="FOLDER",
        help=(
            "folder of existing images; their metadata supply base model, resolution, sampler and prompts, "
            "unless these are given here"
        ),
    )  # fmt: skip
    add_edits(command)
    command.add_argument(
        "--propose", action="store_true", help="only print what the images say; make nothing"
    )
    add_given(command)
    command.add_argument(
        "--generator", choices=list(GENERATORS), help="the program that makes the images (own, or the program "
        "that made --images)"
    )
    command.add_argument("--adapter", type=Path, metavar="FILE", help="adapter to start from")
    command.add_argument(
        "--card", type=int, choices=CARDS, default=16, help="memory of the graphics card in GB (16)"
    )
    command.add_argument(
        "--preset",
        default="",
        metavar="NAME",
        help="a preset of training_presets; chosen by model and card if not given",
    )
    command.add_argument("--device", help="auto, cpu, cuda or cuda:N")
    command.add_argument("--url", help="address of ComfyUI, SwarmUI or A1111; by default the usual one")
    command.add_argument(
        "--remote", action="store_true", help="the address may be outside this computer's network"
    )
    command.add_argument("--checkpoint", metavar="NAME", help="the base model's name in that program")
    command.add_argument(
        "--lora-folder", metavar="FOLDER", help="that program's LoRA folder, for handing adapters over"
    )
    command.add_argument("--workflow", type=Path, metavar="FILE", help="a workflow of ComfyUI in API format")
    command.add_argument(
        "--slot", action="append", default=[], metavar="NAME=NODE.INPUT",
        help=(
            "input of the workflow for prompt, negative, seed, width, height, steps, cfg, sampler, checkpoint, lora "
            "or source, if it is not found automatically"
        ),
    )  # fmt: skip
    command.add_argument("--seed", type=int, default=1, help="seed of images, order and held-out prompts (1)")
    command.add_argument(
        "--near-duplicates", type=int, metavar="BITS",
        help="images whose hashes differ in at most this many of 64 bits count as one image "
        f"({USUAL_NEAR_DUPLICATES}; all are kept with the demo model); -1 keeps all images",
    )  # fmt: skip
    for name, kind in IMAGE_OPTIONS.items():
        command.add_argument(
            f"--{name.replace('_', '-')}", type=kind,
            help="scale source images to about the area of a square with this side in pixels, also in training; by "
            "default to the area of the image"
            if name == "source_resolution"
            else "for all images; by default the model's usual value",
        )  # fmt: skip


def add_given(command: argparse.ArgumentParser) -> None:
    """Add the options for what a person brings to a new project: prompts, and images that they edit."""
    command.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="one prompt per line, {a|b} stands for a or b; for edits a .jsonl file with prompt and source",
    )
    command.add_argument(
        "--to-edit", type=Path, metavar="PATH",
        help="for edits: an image, or a folder of images; each prompt is an instruction for each of these images",
    )  # fmt: skip


def add_publish(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    command.add_argument("--adapter", default="last", help="last or round-N (last)")
    command.add_argument("--title", default="", help="name of the adapter")
    command.add_argument("--author", default="", help="name of the author, as it will be shown")
    command.add_argument("--license", default="", metavar="NAME", help="for example cc-by-4.0")
    command.add_argument(
        "--description", default="", help="description on the model card; a plain one by default"
    )
    command.add_argument("--trigger", default="", metavar="PHRASE", help="trigger phrase of the adapter")
    command.add_argument(
        "--base-name",
        default="",
        metavar="OWNER/NAME",
        help="public name of the base model, if it is a file here",
    )
    command.add_argument(
        "--upload", default="", metavar="OWNER/NAME",
        help="upload the folder written before, as it is now, to Hugging Face; private unless --public",
    )  # fmt: skip
    command.add_argument("--public", action="store_true", help="make a new repository public")


def add_between(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--between", default="", metavar="A,B[,C]",
        help="base, start, last, round-N or an adapter file, with @S for a strength (last,base); without a project, "
        "a folder of images for each, as [NAME=]FOLDER",
    )  # fmt: skip
    command.add_argument(
        "--images", type=positive, default=USUAL_QUESTIONS, metavar="N",
        help=f"images made for each contestant ({USUAL_QUESTIONS})",
    )  # fmt: skip


def add_judge(command: argparse.ArgumentParser) -> None:
    add_between(command)
    command.add_argument(
        "--clip", metavar="MODEL", help="folder or hub name of CLIP; by default the model that was downloaded before"
    )
    command.add_argument(
        "--pickscore", metavar="MODEL",
        help="folder or hub name of PickScore; by default the model that was downloaded before",
    )  # fmt: skip


def add_compare(command: argparse.ArgumentParser) -> None:
    add_between(command)
    command.add_argument(
        "--votes",
        type=positive,
        default=USUAL_VOTES,
        help=f"stop undecided after this many votes ({USUAL_VOTES})",
    )
    command.add_argument(
        "--seed", type=int, default=42, help="without a project: seed of the sides and the order of images (42)"
    )
    command.add_argument("--headless", action="store_true", help="JSON lines on stdin and stdout")
    command.add_argument("--result", action="store_true", help="only print the result so far, and make no images")
    command.add_argument("--prepare", action="store_true", help="only make missing images, and print the result so far")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; see ``--help``."""
    options = make_parser().parse_args(arguments)
    progress = ProgressLine()

    def work() -> int:
        result = options.run(options, progress)
        progress.end()
        if result is not None:
            print(json.dumps(result, indent=2) if options.json else lines(result))
        return 0

    return exit_status(work, progress)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
