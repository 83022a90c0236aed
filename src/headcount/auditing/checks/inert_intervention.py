"""Do interventions on heads act on this model, at every attention block?

An ablation that does nothing gives plausible numbers: every head costs 0. If a hook is at the wrong module, or if fused
code never calls the module, heads seem not to matter. The check first proves that headcount's hooks act, and fails
where they do not. Then it removes all heads of each attention block together, and warns if no logit changes: the hooks
act, but the heads do nothing, as in a block whose output the model does not use.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headcount.auditing.audited_model import AuditedModel
from headcount.auditing.check import CONCLUSIONS, Check, Finding, failed, not_applicable, passed, warned
from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.gates import Gates, eval_mode
from headcount.hooks.intervention_proof import ROWS, difference, first_tensor, prove
from headcount.hooks.sites import Sites

N_EXAMPLES = 64
"""Number of examples whose logits are compared: one changed logit shows that a block has an effect."""
MAX_CHANGE = 1e-7
"""A change up to this fraction of the largest logit counts as none; working heads change logits far more."""


def run(model: AuditedModel) -> Finding:
    """Prove that the hooks act on heads; then remove all heads of each block in turn; warn if no logit changes."""
    module, sites = model.opened.module, model.opened.sites
    if not sites:
        return not_applicable("the model has no heads")
    inputs = model.inputs(model.examples[:N_EXAMPLES])
    try:
        prove(module, sites, [each[:ROWS] for each in inputs])
    except InstrumentError as error:
        return failed(
            f"interventions on heads do not act as they should: {error.what}",
            cause="consistent with a sites() that names another module than the output projection of an attention "
            "block, or with a model that computes the projection without calling its module",
            fix="let sites() name the output projections: the modules whose input holds the outputs of all heads side "
            "by side on its last axis, and examples on its first axis",
        )
    changes = changes_without_heads(module, sites, inputs)
    inert, n = [site for site, change in changes.items() if change <= MAX_CHANGE], len(inputs[0])
    least = min(changes.values())
    if not inert:
        finding = f"removing the heads of a block changes logits by at least {least:.1e} of the largest logit"
        return passed(f"{finding}, at each of {len(sites)} blocks, on {n} examples", n=n, least_change=least)
    names = ", ".join(map(str, inert))
    return warned(
        f"the heads of {names} do nothing: removing all of them changes no logit on {n} examples",
        cause="consistent with heads whose output is zero, with an output projection that passes nothing on, or with a "
        "model that does not use the block's output",
        fix="leave these heads out of rankings and out of counts of heads that can be pruned, and check that they were "
        "trained",
        n=n,
        sites=names,
    )


def changes_without_heads(module: nn.Module, sites: Sites, inputs: tuple[Tensor, ...]) -> dict[HeadSite, float]:
    """Return, for each attention block, the change of logits without its heads, relative to the largest logit."""
    changes = {}
    with eval_mode(module, gradients=False):
        logits = first_tensor(module(*inputs))
        for name, site in sites.items():
            with Gates(sites, {name: torch.zeros(1, len(site.heads))}):
                changes[name] = difference(first_tensor(module(*inputs)), logits)
    return changes


PART = Check(
    "HC701",
    "Do interventions on heads act on this model, at every attention block?",
    sequences=run,
    classes=run,
    affects=CONCLUSIONS,
)
