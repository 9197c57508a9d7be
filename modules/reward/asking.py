"""Chooses images to ask a person about: those whose order a learned taste is least sure of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from modules.reward.taste_head import TasteHead, entropy, information


def worth_asking(head: object, liking_N: Tensor, features_ND: Tensor) -> Tensor:
    """Information about the taste in an answer about each two images, in nats (N, N) float64, 0 on the
    diagonal.

    For a head that knows its uncertainty, the expected information of an answer; for another one, the entropy
    of the answer it predicts.
    """
    count = len(liking_N)
    made_NN = torch.zeros(count, count, dtype=torch.float64)
    if count < 2:
        return made_NN
    first_Q, second_Q = torch.triu_indices(count, count, offset=1)
    if isinstance(head, TasteHead):
        worth_Q = information(*head.differ(features_ND, torch.stack([first_Q, second_Q], dim=1)))
    else:
        worth_Q = entropy(torch.sigmoid((liking_N[first_Q] - liking_N[second_Q]).double()))
    made_NN[first_Q, second_Q] = made_NN[second_Q, first_Q] = worth_Q
    return made_NN


def least_sure(worth_NN: Tensor, count: int, chosen: Sequence[int] = ()) -> list[int]:
    """Greedily choose the images whose pairs are worth most: the best pair, then the image worth most with
    those chosen.

    Args:
        worth_NN: worth of every pair, symmetric.
        count: number of images; all if there are fewer.
        chosen: indices of images that are included in any case.

    Returns:
        Indices in ascending order; among equals, the first.
    """
    found = list(dict.fromkeys(chosen))
    if not found and count > 1 and len(worth_NN) > 1:
        found = list(divmod(int(worth_NN.argmax()), len(worth_NN)))
    while len(found) < min(count, len(worth_NN)):
        total_N = worth_NN[:, found].sum(dim=1)
        total_N[found] = -torch.inf
        found.append(int(total_N.argmax()))
    return sorted(found)
