"""Automatic judges of a project. Their results on the compared images are shown next to a person's votes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modules.arena.Contestant import Contestant, Question
from modules.arena.Judged import Judged
from modules.project.Project import ARENA, Adapter, Project
from modules.project.proving import contestant_key, key_of_adapter, prepare
from modules.project.Round import Round, write_json_in
from modules.project.taste_head import taste_file
from modules.runner.LineProcess import LineProcess, result_of
from modules.util.display import counted
from modules.util.errors import UserError
from modules.util.jsonio import read_json
from modules.util.program_files import ROOT

SCRIPT = ROOT / "scripts" / "judge.py"
FILE = f"{ARENA}/automatic.json"
BETWEEN = " | "
Progress = Callable[[str], None]
Json = dict[str, Any]


def judge(
    project: Project,
    adapters: Sequence[Adapter],
    progress: Progress,
    count: int,
    models: Mapping[str, str] | None = None,
) -> list[Json]:
    """Compare the first contestant with each of the others by the judges. Stored in ``arena/automatic.json``.

    Args:
        adapters: the contestants; missing images are made.
        models: locations of ``clip`` and ``pickscore``, if not in the hub cache.

    Raises:
        UserError: images cannot be made, or a judge failed.
    """
    with project.busy():
        made = prepare(project, adapters, count, progress)
        common = sorted(set.intersection(*(set(one.images) for one in made)))
        answer = _ask(project, made, common, progress, models or {})
        found = [_judged(project, answer, made, number, common) for number in range(1, len(made))]
        kept = kept_judgements(project)
        for other, one in zip(made[1:], found, strict=True):
            key = _key(made[0].key, other.key)
            kept.pop(key, None)  # the newest is the last
            kept[key] = one
        write_json_in(project.owned, FILE, kept)
    return found


def kept_judgements(project: Project) -> dict[str, Json]:
    """All judgements so far, by contestants; empty if there are none."""
    path = project.folder / FILE
    data = read_json(path, "automatic judgements") if path.is_file() else {}
    if not isinstance(data, dict) or not all(isinstance(one, dict) for one in data.values()):
        raise UserError(f"{FILE} is not a record of judgements", hint="delete it, and judge again")
    return data


def judgements_of(project: Project, adapters: Sequence[Adapter]) -> list[Json]:
    """Stored judgements of the first contestant against each of the others, with sources of the present size."""
    kept = kept_judgements(project)
    first, *others = (contestant_key(project, adapter) for adapter in adapters)
    keys = [_key(first, other) for other in others]
    return [kept[key] for key in keys if key in kept]


def judgement_of_round(project: Project, one: Round) -> Json | None:
    """The newest judgement of a round's adapter against the base model; ``None`` if there is none."""
    if not one.trained:
        return None
    wanted = [Adapter(one.name, one.adapter_path).key, "base"]
    found = [
        judgement
        for key, judgement in kept_judgements(project).items()
        if [key_of_adapter(part) for part in key.split(BETWEEN)] == wanted
    ]
    return found[-1] if found else None


def _key(first: str, second: str) -> str:
    return first + BETWEEN + second


def _ask(
    project: Project,
    made: Sequence[Contestant],
    common: Sequence[Question],
    progress: Progress,
    models: Mapping[str, str],
) -> Json:
    images = [
        {"path": str(one.images[question]), "prompt": question[0], "group": f"{number} {one.theme(question)}"}
        for number, one in enumerate(made)
        for question in common
    ]
    told = {"images": images, "base": project.file.model.base, **models}
    head = taste_file(project)
    if head is not None:
        told["taste"] = str(head)
    command = [sys.executable, str(SCRIPT), "--device", project.file.device]
    process = LineProcess(command, json.dumps(told).encode(), "the automatic judges", progress)
    answer = result_of(process)
    if not answer:
        raise UserError("the automatic judges did not answer", hint="run judge again")
    return answer


def _judged(
    project: Project, answer: Json, made: Sequence[Contestant], other: int, common: Sequence[Question]
) -> Json:
    """The judgement of the first contestant against the one of this number."""
    size = len(common)

    def part(values: Sequence[float], number: int) -> Sequence[float]:
        return values[number * size : (number + 1) * size]

    def spread(number: int) -> dict[str, float]:
        mine = f"{number} "
        return {
            name.removeprefix(mine): far for name, far in answer["spread"].items() if name.startswith(mine)
        }

    scores = {name: (part(said, 0), part(said, other)) for name, said in answer["scores"].items()}
    return Judged(
        made[0].name, made[other].name, [made[0].theme(one) for one in common], scores,
        (spread(0), spread(other)), answer["measure"], answer["missing"], _about_taste(project),
    ).to_dict()  # fmt: skip


def _about_taste(project: Project) -> str:
    told = next((one.taste for one in reversed(project.rounds()) if one.taste_path.is_file()), {})
    accuracy, count = told.get("accuracy"), told.get("measured_on")
    if accuracy is None or not count:
        return ""
    return f"right in {accuracy:.0%} of {counted(int(count), 'comparison')} it had not seen"
