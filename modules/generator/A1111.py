"""A1111, Forge and SD.Next, started with ``--api``."""

from __future__ import annotations

import base64
from typing import Any

from modules.generator.Generator import Description, ImageRequest
from modules.generator.Remote import DEFAULT_SIDE, Remote
from modules.util.errors import UserError


class A1111(Remote):
    """One image per request; a LoRA is a tag in the prompt.

    Args:
        settings: those of ``Remote``; without ``checkpoint``, the loaded model is used.
    """

    WHAT = "A1111"
    URL = "http://127.0.0.1:7860"

    def describe(self) -> Description:
        models = self.client.get_json("sdapi/v1/sd-models")
        loras = self.client.get_json("sdapi/v1/loras")
        samplers = self.client.get_json("sdapi/v1/samplers")
        with self.understood("lists of models, adapters and samplers"):
            names = [str(one[key]) for one in models for key in ("title", "model_name") if one.get(key)]
            return Description(
                self.WHAT,
                "",
                tuple(names),
                tuple(str(one["name"]) for one in loras),
                tuple(str(one["name"]) for one in samplers),
            )

    def refresh_adapters(self) -> None:
        self.client.post("sdapi/v1/refresh-loras", {})

    def make(self, request: ImageRequest, adapter: str) -> bytes:
        body: dict[str, Any] = {
            "prompt": request.prompt + (f" <lora:{adapter}:{request.strength:g}>" if adapter else ""),
            "negative_prompt": request.negative, "seed": request.seed, "batch_size": 1,
            "width": request.width or DEFAULT_SIDE, "height": request.height or DEFAULT_SIDE,
        }  # fmt: skip
        usual = {"steps": request.steps, "cfg_scale": request.cfg, "sampler_name": request.sampler}
        body |= {name: value for name, value in usual.items() if value is not None}
        if self.checkpoint:
            body["override_settings"] = {"sd_model_checkpoint": self.checkpoint}
        answer = self.client.post("sdapi/v1/txt2img", body)
        try:
            return base64.b64decode(str(answer["images"][0]).rpartition(",")[2], validate=True)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UserError("A1111 sent something that is not an image") from error

    def cancel(self) -> None:
        self.client.post("sdapi/v1/interrupt", {})
