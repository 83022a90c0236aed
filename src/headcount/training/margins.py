"""How surely a model answers: one forward pass tells whether free-running generation is right, and by how much.

Fed the right answer, a model's first wrong token is the one it would have said running freely. So generation is
right exactly if every token is right here; no decoding loop is needed.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.models.encoder_decoder import EncoderDecoder
from headcount.tasks.base import Examples, SequenceTask
from headcount.training.evaluation import evaluating, in_blocks, on_device


def margins(model: EncoderDecoder, task: SequenceTask, examples: Examples) -> NDArray[np.float64]:
    """For each example, the least lead of a right token's logit over the best wrong one: positive if it is right.

    An example whose answer does not begin with what generation takes for given is wrong without asking: -inf.
    Examples with one answer among them are quicker: the decoder's first look at what it is fed is shared.
    """
    batch, given = task.encode(examples), task.generation.given
    shared = slice(1) if (batch.answer == batch.answer[0]).all() else slice(None)
    leads = []
    with evaluating(model) as device:
        for part in in_blocks(batch):
            source, fed, right = on_device(device, part.source, part.fed[shared], part.answer[:, len(given) :])
            logits = model(source, fed)
            lead = logits.gather(-1, right[..., None]).squeeze(-1)
            lead = lead - logits.scatter(-1, right[..., None], -torch.inf).amax(dim=-1)
            leads.append(lead.amin(dim=1).cpu().double().numpy())
    begins_right = (batch.answer[:, : len(given)] == given).all(axis=1)
    return np.where(begins_right, np.concatenate(leads), -np.inf)
