"""Makes a folder for sharing an adapter: file, card, picture, figures. Anything that could reveal a path or a
name is left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from modules.project.presets import again_config
from modules.project.Project import Adapter, Project
from modules.project.proving import prepare, verdict
from modules.project.Round import Round
from modules.project.share.card import (
    ADAPTER,
    CARD,
    OF_OWN_IMAGES,
    OF_PAIRS,
    PICTURE,
    RESULT,
    SHOWN_SETTINGS,
    About,
    Facts,
    card,
    spec,
)
from modules.project.share.metadata import copy_with_metadata, read_header
from modules.project.share.pictures import before_after, data_url
from modules.project.training import Method
from modules.spec.registry import FAMILIES
from modules.util.config.SecretsConfig import SecretsConfig
from modules.util.errors import ConfigError, DataError, UserError
from modules.util.owned_files import Owned, shown

COLUMNS = 6
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
OF_SOURCES = f"{PICTURE} and the thumbnail show edits of your source images: check that these may be shared"
FILES = (ADAPTER, CARD, PICTURE, RESULT)
Progress = Callable[[str], None]


def publish(
    project: Project, out: Path, about: About, progress: Progress, adapter: str = "last"
) -> dict[str, Any]:
    """Write the folder.

    Args:
        out: a new folder.
        adapter: ``last`` or ``round-N``.

    Raises:
        UserError: the folder is not empty, the adapter does not exist, or a value is missing. Nothing is
            written then.
    """
    _check(about)
    owned = Owned(out, local=True)
    if not owned.is_vacant():
        raise DataError(f"{shown(out)} is not empty", "--out", "choose a new folder")
    inside = out.absolute().resolve()
    if inside.is_relative_to(project.folder.resolve()) and inside.name != "report":
        raise DataError(
            f"{shown(out)} is inside the project",
            "--out",
            "choose a folder outside of it, or its subfolder report",
        )
    one = _round_of(project, adapter)
    read_header(one.adapter_path)
    if (
        not about.base_name
        and HUB_NAME.fullmatch(project.file.model.base)
        and not Path(project.file.model.base).exists()
    ):
        about = About(**{**vars(about), "base_name": project.file.model.base})
    facts = _facts(project, one)
    with project.busy():
        adapters = (Adapter(one.name, one.adapter_path), Adapter("base"))
        ours, base = prepare(project, adapters, COLUMNS, progress)
    picture = before_after([(base.images[question], ours.images[question]) for question in base.images])
    header = spec(about, facts, date.today().isoformat(), data_url(picture))
    with owned.filled_at_once(last=CARD) as fresh:
        with fresh.write(ADAPTER) as temporary:
            copy_with_metadata(one.adapter_path, temporary, header)
        with fresh.write(PICTURE) as temporary:
            picture.save(temporary, "PNG")
        with fresh.write(RESULT) as temporary:
            temporary.write_text(_json(facts), encoding="utf-8")
        with fresh.write(CARD) as temporary:
            temporary.write_text(card(about, facts), encoding="utf-8")
    made = {"folder": os.fspath(out), "files": list(FILES), "adapter": one.name}
    return {**made, "warning": OF_SOURCES} if project.file.edits else made


def _check(about: About) -> None:
    for name, value in (("--title", about.title), ("--author", about.author), ("--license", about.licence)):
        if not value.strip():
            raise ConfigError("a published adapter needs it", name, "name one")
    for name, value in vars(about).items():
        if any(not c.isprintable() for c in value):
            raise ConfigError(
                f"{value!r} has characters that cannot be shown", name, "write one line of text"
            )


def _round_of(project: Project, adapter: str) -> Round:
    trained = [one for one in project.rounds() if one.trained]
    if not trained:
        raise UserError("no round is trained yet", "--adapter", "train one first")
    for one in trained:
        if adapter == one.name or (adapter == "last" and one is trained[-1]):
            return one
    known = ", ".join(one.name for one in trained)
    raise DataError(f"there is no trained round {adapter!r}", "--adapter", f"known: last, {known}")


def _facts(project: Project, one: Round) -> Facts:
    rows = [
        {
            "candidates": len(other.images()) - len(other.missing()),
            "answers": other.answers,
            "pairs": other.pair_count,
            "steps": int(other.trained.get("steps", 0)),
            "method": str(other.trained.get("method") or "pairs"),
            "accuracy": (other.trained.get("taste") or {}).get("accuracy"),
        }
        for other in project.rounds()
        if other.number <= one.number
    ]
    config = again_config(one.config_path, {}, ()).to_dict()
    hidden = OF_PAIRS if rows[-1]["method"] == Method.TASTE else OF_OWN_IMAGES
    settings = {
        name: config[name] for name in SHOWN_SETTINGS if name in config and not name.startswith(hidden)
    }
    image, family = project.file.image, FAMILIES[project.file.model.type]
    said = verdict(project, one)
    if said is not None:
        said = {name: said[name] for name in ("votes", "decided", "win_rate", "interval")}
    width, height = (side or family.default_resolution for side in (image.width, image.height))
    return Facts(family.label, rows, settings, said, f"{width}x{height}", project.file.edits)


def _json(facts: Facts) -> str:
    made = {
        "family": facts.family,
        "answers": facts.answers,
        "rounds": facts.rounds,
        "arena": facts.arena,
        "settings": facts.settings,
        "resolution": facts.resolution,
    }
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def upload(folder: Path, name: str, public: bool) -> dict[str, Any]:
    """Upload a folder written by ``publish``, in its current state, to a Hugging Face repository.

    Args:
        name: ``owner/name``; created if missing.
        public: whether a new repository is public.

    Raises:
        UserError: the folder contains something else, there is no token, or the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if not HUB_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a name of a repository", "--upload", "for example owner/name")
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there != set(FILES):
        raise UserError(
            f"{shown(folder)} is not a published folder: it should have {', '.join(FILES)} and nothing else",
            "--out",
            "publish without --upload first and look at the folder",
        )
    token = SecretsConfig.hub_token()
    if not token:
        raise UserError(
            "there is no Hugging Face token",
            "--upload",
            "enter one in the window (Tools page, Hugging Face\u2026), or set HF_TOKEN",
        )
    api = HfApi(token=token)
    try:
        api.create_repo(name, private=not public, exist_ok=True)
        made = api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=list(FILES))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(
            f"Hugging Face refused: {str(error).strip().splitlines()[0]}", "--upload", "check name and token"
        ) from error
    return {"uploaded": name, "address": str(made)}
