"""One small model of every style."""

from __future__ import annotations

import pytest
from own_models import ADDERS, CLASSIFIERS, FED, NUMBERS, SOURCE, adder, classifier, name_of
from torch import Tensor

from headcount.models.transformer import Classifier, Model

STYLES = [
    pytest.param(style, id=name_of(style), marks=() if i == 0 else pytest.mark.slow)
    for styles in (ADDERS, CLASSIFIERS)
    for i, style in enumerate(styles)
]


@pytest.fixture(scope="session", params=STYLES)
def model(request: pytest.FixtureRequest) -> Model:
    """Encoder-decoders and classifiers, with pre- and post-norm, several encodings, causal, windowed."""
    return classifier(**request.param) if "pooling" in request.param else adder(**request.param)


@pytest.fixture
def inputs(model: Model) -> tuple[Tensor, ...]:
    """With padding, which is masked."""
    return (NUMBERS,) if isinstance(model, Classifier) else (SOURCE, FED)
