from modules.util.enum.BaseEnum import BaseEnum


class Optimizer(BaseEnum):
    """The update rule."""

    ADAMW = "ADAMW"
    ADAM = "ADAM"
    ADAFACTOR = "ADAFACTOR"
    ADAGRAD = "ADAGRAD"
    RMSPROP = "RMSPROP"
    SGD = "SGD"
    ADABELIEF = "ADABELIEF"
    ADEMAMIX = "ADEMAMIX"
    ADOPT = "ADOPT"
    CAME = "CAME"
    LAMB = "LAMB"
    LION = "LION"
    PRODIGY = "PRODIGY"
    SCHEDULE_FREE_ADAMW = "SCHEDULE_FREE_ADAMW"
    SCHEDULE_FREE_SGD = "SCHEDULE_FREE_SGD"
    TIGER = "TIGER"
