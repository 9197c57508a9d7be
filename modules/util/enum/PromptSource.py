from modules.util.enum.BaseEnum import BaseEnum


class PromptSource(BaseEnum):
    """Where the prompts of a concept come from: a text file beside each image, one text file for all images,
    or the image's file name. The values are those concept files have always used."""

    SAMPLE = "sample"
    CONCEPT = "concept"
    FILENAME = "filename"
