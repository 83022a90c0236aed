"""Generate docs/traps.md: one entry per check of the audit, from the check itself.

python -m tools.traps            # print the page
python -m tools.traps --write    # write docs/traps.md
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from headcount.auditing import audit
from headcount.auditing.audit import checks_named
from headcount.auditing.causes import CAUSES
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
"""Commands that plant a fault in a run of headcount; tests/auditing plants the others."""
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
"""Maps an example script to its library, wrong ways to ablate a head with their verdicts, and a right way."""
HEAD = """# Traps: known experimental mistakes, by id

`headcount audit MODEL` runs every check that applies to a run or to an adapter's model. Its first line names the cause,
with the accuracy that the fault predicts and the measured one, and the ids of all other checks that fail or warn. Each
check has a stable id. The exit code is 1 if a check fails.

    headcount audit sample:addition
    headcount audit adder_adapter.py:Adder --only HC101,sees-ahead
    headcount audit 'submissions/*/adder_adapter.py:Adder' --markdown -o feedback
    headcount audit sample:sortedness --ignore HC403="classes are skewed on purpose" --json

@RANKING@

Verdicts: *pass*; *warn* (it may mislead); *fail* (figures or conclusions are wrong); *explained* (it only follows from
another check, which is named); *ignored* (with the user's reason); *not applicable* (with the reason). Checks marked
*quick* also run beside `train`, `evaluate`, `verify`, `ablate`, `prune` and `stretch`, which print one line if one of
them fails. From Python: `headcount.audit("sample:addition").result`, with `.summary`, `.verdicts`,
`.to_frame()`; a single check with `only=["HC101"]`.

Decoded answers are compared with the right ones exactly as they are written, with all leading zeros of the task or
without any. Another number of leading zeros is a difference of format, not of value: exact match counts such an answer
as wrong, and HC105 names the format and how many answers are right without these zeros.

Interventions that others wrote are audited from Python:

```python
import torch

import headcount

run = headcount.load("sample:sortedness")
tokens = torch.randint(100, (4, 8), generator=torch.Generator().manual_seed(0))
attention = run.model.layers[0].self_attention.attention


def hook(module, args, output):  # splits the projected output as if it still were heads
    output.unflatten(-1, (4, -1))[..., 2, :] = 0


print(headcount.audit_intervention(run, tokens, lambda: attention.register_forward_hook(hook), ["L0H2"]))
```

The audit runs the model with and without the intervention. It reports what was done to every head, and gives one line
of code that removes the heads correctly. Its verdicts:

- *exactly these heads removed*: by zero, a mean, a constant, another example's output, another head's, or other values
- *not removed*, *scaled, not removed*, *removed in places only*: the replacement still depends on the head's output
- *other heads as well*, *not all of them*, *other heads instead*, *wrong layer*
- *residual coordinates instead of a head*: a block's output is reshaped into "heads" (thought-anchors issue 7), or
  slices of `o_proj.output` are set (nnsight issue 525)
- *changed something that is no head*, or *something else as well*
- *did nothing*: a mask never reaches the model (optin-transformer-pruning issue 6; `head_mask` under transformers 5)
- *output that is not a number*: the intervention makes NaN

### When is a head removed?

A head computes z on an example, and the intervention replaces z by r. The head is removed if r does not change when z
is replaced by the head's output on another example. The audit tests this in two ways: it inserts another example's z,
and it puts another example into a row of the inputs. Then it runs the intervention again and tests whether r changes.

| replacement r | removed? |
| --- | --- |
| zeros, a constant, noise, a mean over other inputs | yes |
| another example's output, or that of another run | yes |
| another head's output | yes: r does not depend on the example through this head |
| the mean over the batch | yes: r depends on each of n examples by 1/n, but is the same in every row |
| the mean over the positions of the same example | no: r differs from example to example |
| z scaled, shifted, or with noise added | no |
| z with its features or positions rearranged or averaged, or its negative values set to zero | no |
| what the head computes with zero queries or keys | no: attention is even, and its values still pass through |
| zeros at some positions, in some rows or for some features | only there |

Give at least two rows that differ, so that the audit can tell a mean and another row's output from a head's own. For a
model of an unknown family, `sites=` says where its heads are. The audit restores the weights, modules, hooks and
training mode, even if the intervention raises an error.

The intervention can be a context manager, a function that returns one or the handles of hooks, a function that runs the
model itself (an nnsight trace, `run_with_hooks`), or keyword arguments of the model, so any library works. Each link
below is a short script on a small model, which the tests run where the library is installed:

@IN_LIBRARIES@

This page is generated from the checks (`python -m tools.traps --write`).
"""


def page() -> str:
    """Return the whole page."""
    head = HEAD.replace("@IN_LIBRARIES@", _library_table()).replace("@RANKING@", _ranking())
    parts, kind = [head], ""
    for name, check in checks_named().items():
        if check.id[:3] not in KINDS:
            headings = ", ".join(f"{start}xx ({words})" for start, words in KINDS.items())
            raise SystemExit(f"{check.id} ({name}) belongs to no heading of the page; there are: {headings}")
        if (here := KINDS[check.id[:3]]) != kind:
            kind = here
            parts.append(f"## {kind}\n")
        story = (sys.modules[check.module].__doc__ or "").strip().partition("\n\n")[2]
        marks = ", ".join(filter(None, [check.subject, "quick" if check.is_quick else ""]))
        parts.append(
            f"### {check.id}\n\n**{name.replace('-', ' ')}**{f' ({marks})' if marks else ''}: {check.question}\n"
        )
        parts.append(re.sub(r"\s*\n\s*", " ", story) + "\n")
        parts += [
            f"If it fails, it explains {', '.join(cause.effects)}. {cause.reason}\n"
            for cause in CAUSES
            if cause.id == check.id
        ]
        planted = f"{MADE_BY[check.id]} -o runs/trap\n    " if check.id in MADE_BY else ""
        model = "runs/trap" if planted else "my_adapter.py:Model"
        parts.append(f"    {planted}headcount audit {model} --only {check.id}\n")
    return "\n".join(parts)


def _ranking() -> str:
    """Return the rule that ranks causes, from the docstring of the module that applies it."""
    text = (audit.__doc__ or "").partition("\n\n")[2].strip()
    return text.replace("(headcount.auditing.causes)", "(`src/headcount/auditing/causes.py`)")


def _library_table() -> str:
    rows = [["library", "wrong", "verdict of the audit", "right"], ["---"] * 4]
    for name, (library, wrong, right) in IN_LIBRARIES.items():
        link = f"[{library}](../examples/interventions/{name}.py)"
        rows += ([link, way, verdict, right] for way, verdict in wrong.items())
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())


if __name__ == "__main__":
    main()
