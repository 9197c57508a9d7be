from modules.util.enum.BaseEnum import BaseEnum


class DPOPatienceMetric(BaseEnum):
    """Validation metrics that early stopping can watch; the values are the names they are logged under."""

    VAL_ACCURACY = "val_accuracy"
    VAL_LOSS = "val_loss"
    VAL_CHOSEN_REWARD = "val_chosen_reward"

    @property
    def higher_is_better(self) -> bool:
        return self is not DPOPatienceMetric.VAL_LOSS
