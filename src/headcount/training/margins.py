"""How surely a model answers: one forward pass tells whether free-running generation is right, and by how much.

Fed the right answer, a model's first wrong token is the one it would have said running freely. So generation is
right exactly if every token is right here; no decoding loop is needed.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.models.encoder_decoder import EncoderDecoder
from headcount.tasks.base import Examples, Task
from headcount.training.evaluation import BLOCK, evaluating


def margins(model: EncoderDecoder, task: Task, examples: Examples) -> NDArray[np.float32]:
    """For each example, the least lead of a right token's logit over the best wrong one: positive if it is right.

    An example whose answer does not begin with what generation takes for given is wrong without asking: -inf.
    """
    batch, given = task.encode(examples), task.generation.given
    right = batch.answer[:, len(given) :]
    leads = []
    with evaluating(model) as device:
        for i in range(0, len(batch), BLOCK):
            part = (a[i : i + BLOCK] for a in (batch.source, batch.fed, right))
            source, fed, wanted = (torch.from_numpy(a).to(device) for a in part)
            logits = model(source, fed)
            lead = logits.gather(-1, wanted[..., None]).squeeze(-1)
            lead = lead - logits.scatter(-1, wanted[..., None], -torch.inf).amax(dim=-1)
            leads.append(lead.amin(dim=1).float().cpu().numpy())
    begins_right = (batch.answer[:, : len(given)] == given).all(axis=1)
    return np.where(begins_right, np.concatenate(leads), -np.inf).astype(np.float32)
