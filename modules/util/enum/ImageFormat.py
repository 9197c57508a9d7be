from modules.util.enum.BaseEnum import BaseEnum


class ImageFormat(BaseEnum):
    """File format of sample images."""

    PNG = "PNG"
    JPG = "JPG"
