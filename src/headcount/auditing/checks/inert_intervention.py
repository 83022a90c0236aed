"""Do interventions on heads act on this model, at every block?

An ablation that does nothing gives plausible numbers: every head costs 0. Projections that are named wrongly, fused
paths that never call them and blocks whose output nothing reads all look like heads that do not matter. So headcount's
hooks are proven first; then the heads of every block are removed together, and some logit has to change.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headcount.auditing.check import CONCLUSIONS, Check, Finding, failed, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.gates import Gates, eval_mode
from headcount.hooks.proof import ROWS, difference, first_tensor, prove
from headcount.hooks.sites import Sites

N_TRIED = 64
"""Examples whose logits are compared."""
ROUNDING = 1e-7
"""What counts as no change, as a share of the largest logit."""


def run(observed: Observed) -> Finding:
    """Prove the hooks, then remove all heads of one block after the other."""
    model, sites = observed.model.module, observed.model.sites
    if not sites:
        return not_applicable("it has no heads")
    inputs = observed.inputs(observed.examples[:N_TRIED])
    try:
        prove(model, sites, [each[:ROWS] for each in inputs])
    except InstrumentError as error:
        return failed(
            f"interventions on heads do not act as they should: {error.what}",
            cause="consistent with sites that name another module than the output projection, or with a block that "
            "the model computes in another way than by calling it",
            fix="let sites() name the modules whose input is the heads' outputs side by side, rows first",
        )
    changes = removed(model, sites, inputs)
    inert, n = [site for site, change in changes.items() if change <= ROUNDING], len(inputs[0])
    least = min(changes.values())
    if not inert:
        told = f"without the heads of a block, logits change by {least:.1e} of the largest or more, at every block"
        return passed(f"{told} of {len(sites)}, on {n} examples", n=n, least_change=least)
    names = ", ".join(map(str, inert))
    return warned(
        f"the heads of {names} do nothing: removing all of them changes no logit on {n} examples",
        cause="what these heads find is zero, or their output projection passes nothing on",
        fix="leave them out of rankings and of shares of heads that can be pruned, and look whether they were trained",
        n=n,
        sites=names,
    )


def removed(model: nn.Module, sites: Sites, inputs: tuple[Tensor, ...]) -> dict[HeadSite, float]:
    """By block, how much logits change without its heads, as a share of the largest."""
    changes = {}
    with eval_mode(model, gradients=False):
        logits = first_tensor(model(*inputs))
        for name, site in sites.items():
            with Gates(sites, {name: torch.zeros(1, len(site.heads))}):
                changes[name] = difference(first_tensor(model(*inputs)), logits)
    return changes


PART = Check("HC701", "Do interventions on heads act on this model, at every block?", run, affects=CONCLUSIONS)
