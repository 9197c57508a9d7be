from modules.util.enum.BaseEnum import BaseEnum


class Optimizer(BaseEnum):
    """The update rule."""

    ADAMW = "ADAMW"
    ADAM = "ADAM"
    ADAMW_8BIT = "ADAMW_8BIT"
    ADAM_8BIT = "ADAM_8BIT"
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
    LION_8BIT = "LION_8BIT"
    PRODIGY = "PRODIGY"
    SCHEDULE_FREE_ADAMW = "SCHEDULE_FREE_ADAMW"
    SCHEDULE_FREE_SGD = "SCHEDULE_FREE_SGD"
    TIGER = "TIGER"
