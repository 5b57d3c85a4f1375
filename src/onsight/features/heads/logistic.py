"""Multinomial logistic regression on features: convex, so its answer does not hang on luck."""

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.features.heads.linear import LinearHead

_TOLERANCE = 1e-5  # largest gradient at which the loss no longer matters


def fit_logistic(
    features: Tensor,
    labels: Tensor,
    classes: int,
    penalty: float,
    weights: Tensor | None = None,
    start: LinearHead | None = None,
    iterations: int = 100,
) -> LinearHead:
    """Minimise the mean cross-entropy plus penalty / 2 times the squared weights, by L-BFGS.

    features: float (n, D), standardised; labels: int64 (n,); weights: float (n,) of the images,
    their mean 1; start: where to begin, by default at zero; iterations: the most. The bias is not
    penalised; scikit-learn's C is 1 / (n * penalty).
    """
    shape = (classes, features.shape[1])
    weight = start.weight.clone() if start else features.new_zeros(shape)
    bias = start.bias.clone() if start else features.new_zeros(classes)
    weight.requires_grad_(), bias.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=iterations,
        tolerance_grad=_TOLERANCE,
        tolerance_change=0.0,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        each = F.cross_entropy(torch.addmm(bias, features, weight.T), labels, reduction="none")
        mean = (each if weights is None else each * weights).mean()
        total = mean + penalty / 2 * weight.square().sum()
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(loss)
    return LinearHead(weight.detach(), bias.detach())
