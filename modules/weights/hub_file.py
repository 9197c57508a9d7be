"""A single file of weights, on this machine or in a repository on the hub."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from modules.util.config.SecretsConfig import SecretsConfig
from modules.util.errors import UserError
from modules.util.files.hub_names import file_on_hub
from modules.util.files.user_path import user_path
from modules.util.tensors.peft_config import NAME, WEIGHTS

ENDING = ".safetensors"


def local_file(name: str) -> Path | None:
    """The local file of a name, if it exists.

    Args:
        name: a path, ``owner/name/file.safetensors``, or ``owner/name`` of a repository with one such file.

    Raises:
        UserError: it begins with ``~`` and the name of a user whom this computer does not have.
    """
    path = user_path(name)
    if path.is_file():
        return path
    repository, file = file_on_hub(name)
    if not repository:
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repository, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    found = [folder / file] if file else sorted(folder.rglob(f"*{ENDING}"))
    return found[0] if len(found) == 1 and found[0].is_file() else None


def find_file(name: str, field: str) -> Path:
    """As ``local_file``, but a file on the hub is downloaded.

    Args:
        field: the setting that holds the name, for errors.

    Raises:
        UserError: the file does not exist, cannot be downloaded, or the repository holds several.
    """
    check_name(name, field)
    path = user_path(name, field)
    if path.is_file():
        return path
    repository, file = file_on_hub(name)
    from huggingface_hub import hf_hub_download, list_repo_files
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        if not file:
            listed = list_repo_files(repository, token=SecretsConfig.hub_token())
            names = [one for one in listed if one.endswith(ENDING)]
            if len(names) != 1:
                raise UserError(
                    f"the repository {repository} holds {len(names)} files that end in {ENDING}",
                    field,
                    f"name one of them: {', '.join(f'{repository}/{one}' for one in names[:8])}"
                    if names
                    else "use another repository",
                )
            file = names[0]
        settings = PurePosixPath(file).with_name(NAME)
        if PurePosixPath(file).name == WEIGHTS:
            try:
                hf_hub_download(repository, str(settings), token=SecretsConfig.hub_token())
            except EntryNotFoundError as error:
                # the hub did not answer, so the repository may have some
                if isinstance(error, LocalEntryNotFoundError):
                    raise
        return Path(hf_hub_download(repository, file, token=SecretsConfig.hub_token()))
    except (LocalEntryNotFoundError, EntryNotFoundError, HfHubHTTPError, OSError) as error:
        if (there := local_file(name)) is not None:
            return there
        raise UserError(
            f"{name!r} is neither a local file nor in the local hub cache, and cannot be downloaded: "
            f"{str(error).strip().partition(chr(10))[0]}",
            field,
            "check the name and the network, or give the path of a local file",
        ) from error


def check_name(name: str, field: str) -> None:
    """Raise ``UserError`` if a name is neither that of a local file nor a valid name on the hub."""
    path = user_path(name, field)
    if path.is_file():
        if path.suffix.lower() != ENDING:
            raise UserError(
                f"{path} is not a safetensors file",
                field,
                "pickles (.pt, .ckpt, .bin) can run any program hidden in them and are not opened",
            )
        return
    repository, file = file_on_hub(name)
    if not repository or (file and not file.endswith(ENDING)):
        raise UserError(
            f"the file {name!r} does not exist",
            field,
            f"check the path; a file on the hub is named owner/name/file{ENDING}",
        )
