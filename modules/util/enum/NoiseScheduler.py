from modules.util.enum.BaseEnum import BaseEnum


class NoiseScheduler(BaseEnum):
    """The sampler that turns noise into an image."""

    DDIM = "DDIM"
    EULER = "EULER"
    EULER_A = "EULER_A"
    EULER_KARRAS = "EULER_KARRAS"
    DPMPP = "DPMPP"
    DPMPP_KARRAS = "DPMPP_KARRAS"
    DPMPP_SDE = "DPMPP_SDE"
    DPMPP_SDE_KARRAS = "DPMPP_SDE_KARRAS"
    UNIPC = "UNIPC"
    UNIPC_KARRAS = "UNIPC_KARRAS"
