from modules.util.enum.BaseEnum import BaseEnum


class NoiseScheduler(BaseEnum):
    """The sampler that turns noise into an image; AUTO is the one a family is usually sampled with."""

    AUTO = "AUTO"
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
