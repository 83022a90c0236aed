"""The page of traps: one entry per check of the audit, from the check itself.

python -m tools.traps            # the page, as docs/traps.md shows it
python -m tools.traps --write    # put it there
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from headcount.auditing.audit import checks_named
from headcount.auditing.interventions import RESIDUAL

PAGE = Path(__file__).parents[1] / "docs" / "traps.md"
KINDS = {
    "HC1": "Decoding",
    "HC2": "Masks and padding",
    "HC3": "Collapse",
    "HC4": "Data",
    "HC5": "Positions",
    "HC6": "Shortcuts",
    "HC7": "Ablation",
    "HC8": "Figures",
}
MADE_BY = {
    "HC101": "headcount train addition --no-start-token",
    "HC102": "headcount train addition --loss-ignores-zero",
    "HC106": "headcount train addition --no-start-token",
    "HC107": "headcount train addition --no-start-token",
    "HC203": "headcount train sortedness --padding-is-zero",
    "HC401": "headcount train addition --preset newer",
    "HC501": "headcount train sortedness --encoding learned --past-table untrained",
    "HC504": "headcount train sortedness --encoding length-normalised",
    "HC505": "headcount train sortedness --encoding none --pooling mean",
    "HC506": "headcount train sortedness --encoding none --pooling neighbour-difference",
}
"""Settings of headcount's own that plant a fault; the others are planted in tests/auditing."""
IN_LIBRARIES = {
    "pytorch_hooks": (
        "PyTorch",
        {
            "a hook on `self_attn`, its output reshaped into heads (thought-anchors issue 7)": RESIDUAL,
            "a hook on `q_proj`, the head's queries set to zero": "not removed",
        },
        "a pre-hook on `o_proj`",
    ),
    "transformers_attention": (
        "transformers 5",
        {"`head_mask=mask`": "did nothing", "an attention function, and no mask function": "something else as well"},
        "`AttentionInterface` and `AttentionMaskInterface`",
    ),
    "transformer_lens_hooks": (
        "TransformerLens 4",
        {"slices at `hook_attn_out`": RESIDUAL, "`z[:, head] = 0` at `hook_z`": "other heads as well"},
        "`z[:, :, head] = 0` at `hook_z`",
    ),
    "nnsight_traces": (
        "nnsight",
        {"slices of `o_proj.output` (issue 525)": RESIDUAL},
        "slices of `o_proj.input`",
    ),
    "pyvene_units": (
        "pyvene",
        {"a subspace of `attention_output`": RESIDUAL},
        "unit `h` of `head_attention_value_output`",
    ),
    "baukit_edits": (
        "baukit",
        {"`edit_output` at `o_proj` (honest_llama issue 42)": RESIDUAL},
        "`edit_output` at `v_proj`, unless heads share values",
    ),
}
"""By example: a library, wrong ways to ablate a head with what the audit says, and a right one."""
HEAD = """# Traps: every known way of fooling oneself, by id

`headcount audit MODEL` runs every check that applies to a run or to an adapter's model. Its first line is the cause,
with the figure that the fault predicts beside the measured one, and the ids of all other checks that fail or warn. Each
check has a stable id. Exit code 1 if one fails.

    headcount audit sample:addition
    headcount audit adder_adapter.py:Adder --only HC101,sees-ahead
    headcount audit 'submissions/*/adder_adapter.py:Adder' --markdown -o feedback
    headcount audit sample:sortedness --ignore HC403="classes are skewed on purpose" --json

Failing checks are ranked by what they explain of the measured accuracy:

1. faults that make every figure meaningless (HC205);
2. faults that predict which of the audited examples stay right, if their predictions together, or that of the best one,
   account for at least half of the wrong answers; the one that agrees with the measurement most comes first;
3. faults that change the answers to the audited examples and predict no figure;
4. faults that predict a figure which does not fit;
5. checks that tell a low accuracy in other words, such as one no better than a constant answer (HC303);
6. faults that cannot change the measured accuracy: those of padded examples (classifiers are measured without padding),
   then those beyond the trained lengths, then those of conclusions.

Verdicts: *pass*; *warn* (it may mislead); *fail* (figures or conclusions are wrong); *explained* (it only follows
from another one, which is named); *ignored* (with the reason that was given); *not applicable* (with the reason).
Checks marked *quick* also run beside `train`, `evaluate`, `verify`, `ablate`, `prune` and `stretch`, which print one
line if one of them fails. From Python: `headcount.audit("sample:addition").result`, with `.summary`, `.verdicts`,
`.to_frame()`; a single check with `only=["HC101"]`.

Other people's interventions are audited from Python:

```python
import torch

import headcount

run = headcount.load("sample:sortedness")
tokens = torch.randint(100, (4, 8), generator=torch.Generator().manual_seed(0))
attention = run.model.layers[0].self_attention.attention


def hook(module, args, output):  # takes what is projected already for heads
    output.unflatten(-1, (4, -1))[..., 2, :] = 0


print(headcount.audit_intervention(run, tokens, lambda: attention.register_forward_hook(hook), ["L0H2"]))
```

The audit runs the model with the intervention and without it. It says what became of every head, and gives one line
that does it right. Its verdicts:

- *exactly these heads removed*: by zero, a mean, a constant, another example's output, another head's, or other values
- *not removed*, *scaled, not removed*, *removed in places only*: what stands in the head's place still follows the head
- *other heads as well*, *not all of them*, *other heads instead*, *wrong layer*
- *residual coordinates instead of a head*: a block's output is reshaped into "heads" (thought-anchors issue 7), or
  slices of `o_proj.output` are set (nnsight issue 525)
- *changed something that is no head*, or *something else as well*
- *did nothing*: a mask never reaches the model (optin-transformer-pruning issue 6; `head_mask` under transformers 5)
- *output that is not a number*: the intervention makes NaN

### When is a head removed?

A head computes z on an example, and the intervention puts r in the place of z. The head is removed if r stays as it is
when z becomes what the head computes on another example. The audit tests this. It puts another example's z in, and
another example into a row of the inputs. It runs the intervention again, and sees whether r follows.

| what stands in the head's place | removed? |
| --- | --- |
| zeros, a constant, noise, a mean over other inputs | yes |
| another example's output, or that of another run | yes |
| another head's output | yes: it does not depend on the example through this head |
| the mean over the batch | yes: r follows each of n examples by 1/n, but r is the same in every row |
| the mean over the positions of the same example | no: r differs from example to example |
| z scaled, shifted, or with noise added | no |
| z with its features or positions rearranged or averaged, or its negative values set to zero | no |
| what the head computes with zero queries or keys | no: attention is even, and its values still pass through |
| zeros at some positions, in some rows or for some features | only there |

Give two rows or more that differ from each other, so that the audit can tell a mean and another row's output from a
head's own. A model of no family that headcount knows is audited if `sites=` says where its heads are. The audit puts
the model's weights, modules, hooks and training mode back as they were, even if the intervention raises an error.

The intervention may be a context manager, a function that returns one or the handles of hooks, a function that runs the
model itself (an nnsight trace, `run_with_hooks`), or arguments of the model; so any library will do. Each of these is a
script of some lines on a small model. The tests run it where the library is installed:

@IN_LIBRARIES@

This page is made of the checks themselves (`python -m tools.traps --write`).
"""


def page() -> str:
    """All of it."""
    parts, kind = [HEAD.replace("@IN_LIBRARIES@", _library_table())], ""
    for name, check in checks_named().items():
        if (here := KINDS[check.id[:3]]) != kind:
            kind = here
            parts.append(f"## {kind}\n")
        told = (sys.modules[check.run.__module__].__doc__ or "").strip().partition("\n\n")[2]
        asked = {"any": "", "sequence": "models that write answers", "class": "classifiers"}[check.asks]
        marks = ", ".join(filter(None, [asked, "quick" if check.is_quick else ""]))
        parts.append(
            f"### {check.id}\n\n**{name.replace('-', ' ')}**{f' ({marks})' if marks else ''}: {check.question}\n"
        )
        parts.append(re.sub(r"\s*\n\s*", " ", told) + "\n")
        if check.explains:
            parts.append(f"If it fails, these only follow from it: {', '.join(check.explains)}.\n")
        made = f"{MADE_BY[check.id]} -o runs/trap\n    " if check.id in MADE_BY else ""
        model = "runs/trap" if made else "my_adapter.py:Model"
        parts.append(f"    {made}headcount audit {model} --only {check.id}\n")
    return "\n".join(parts)


def _library_table() -> str:
    rows = [["library", "wrong", "what the audit says", "right"], ["---"] * 4]
    for name, (library, wrong, right) in IN_LIBRARIES.items():
        link = f"[{library}](../examples/interventions/{name}.py)"
        rows += ([link, way, verdict, right] for way, verdict in wrong.items())
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())


if __name__ == "__main__":
    main()
