"""SwarmUI."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from modules.generator.Generator import Description, ImageRequest
from modules.generator.Remote import DEFAULT_SIDE, Remote
from modules.util.errors import ConfigError, UserError
from modules.util.owned_files import shown


class SwarmUi(Remote):
    """One image per request. An expired session is replaced, and the request is repeated once.

    Args:
        settings: those of ``Remote``; ``checkpoint`` is required.
    """

    WHAT = "SwarmUI"
    URL = "http://127.0.0.1:7801"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        if not self.checkpoint:
            raise ConfigError("SwarmUI needs a model", "--checkpoint", "name one of its models")
        self._session, self._version = "", ""

    def _call(self, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        for last in (False, True):
            if not self._session:
                answer = self.client.post("API/GetNewSession", {}) or {}
                with self.understood("a session"):
                    self._session = str(answer.get("session_id", ""))
                    self._version = str(answer.get("version", ""))
            said = self.client.post(f"API/{name}", {**body, "session_id": self._session})
            if not isinstance(said, Mapping):
                raise UserError(f"SwarmUI answered {name} with something other than an object")
            if said.get("error_id") == "invalid_session_id" and not last:
                self._session = ""
                continue
            if said.get("error") or said.get("error_id"):
                raise UserError(f"SwarmUI: {shown(str(said.get('error') or said['error_id']))}", hint="look at its log")
            return said
        raise AssertionError("unreachable")

    def _list(self, kind: str) -> tuple[str, ...]:
        body = {
            "path": "",
            "depth": 8,
            "subtype": kind,
            "sortBy": "Name",
            "allowRemote": True,
            "sortReverse": False,
        }
        answer = self._call("ListModels", body)
        with self.understood("a list of models"):
            return tuple(str(one["name"]).removesuffix(".safetensors") for one in answer["files"])

    def describe(self) -> Description:
        models, adapters = self._list("Stable-Diffusion"), self._list("LoRA")
        return Description(self.WHAT, self._version, models, adapters)

    def _known(self, name: str, names: Any, what: str, field: str) -> None:
        super()._known(name.removesuffix(".safetensors"), names, what, field)

    def refresh_adapters(self) -> None:
        self._call("TriggerRefresh", {"strong": True})

    def make(self, request: ImageRequest, adapter: str) -> bytes:
        body: dict[str, Any] = {
            "images": 1, "prompt": request.prompt, "negativeprompt": request.negative, "model": self.checkpoint,
            "seed": request.seed, "width": request.width or DEFAULT_SIDE, "height": request.height or DEFAULT_SIDE,
        }  # fmt: skip
        usual = {"steps": request.steps, "cfgscale": request.cfg, "sampler": request.sampler}
        body |= {name: value for name, value in usual.items() if value is not None}
        if adapter:
            body |= {"loras": adapter, "loraweights": str(request.strength)}
        images = self._call("GenerateText2Image", body).get("images") or []
        if not images:
            raise UserError("SwarmUI made no image and gave no reason", hint="look at its log")
        with self.understood("a list of images"):
            place = str(images[0])
        if place.startswith("data:"):
            try:
                return base64.b64decode(place.partition(",")[2], validate=True)
            except ValueError as error:
                raise UserError("SwarmUI sent something that is not an image") from error
        return self.client.get(place.lstrip("/"))

    def cancel(self) -> None:
        if self._session:
            self._call("InterruptAll", {"other_sessions": False})
