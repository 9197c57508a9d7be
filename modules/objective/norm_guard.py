"""The guard of the prediction's norm: preference training must not make a model's predictions larger than those of its
reference.

A preference loss rewards any change that moves the two scores of a pair apart, and the cheapest one makes the
predictions larger. Signs are overly strong colours and ignored prompts (arXiv 2606.27771).
"""

from __future__ import annotations

import torch


def excess_of_norm(norm_B: torch.Tensor, reference_B: torch.Tensor) -> torch.Tensor:
    """``max(0, |v| / |v_ref| - 1)^2`` of each image, (B,); 0 without a gradient where the norm is not larger.

    Args:
        norm_B: L2 norm of the policy's prediction, with its graph.
        reference_B: norm of the reference's prediction at the same draw, (B,), positive.

    Raises:
        ValueError: the shapes differ.
    """
    if norm_B.shape != reference_B.shape or norm_B.dim() != 1:
        raise ValueError(
            f"norms of shapes {tuple(norm_B.shape)} and {tuple(reference_B.shape)}; expected (B,) twice"
        )
    least = torch.finfo(norm_B.dtype).tiny
    return (norm_B / reference_B.to(norm_B.dtype).clamp(min=least) - 1.0).clamp(min=0.0).square()
