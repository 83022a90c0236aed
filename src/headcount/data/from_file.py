"""Plain text and tables as datasets, and single texts, for models with a tokenizer.

A file is plain text, or a table with tabs whose header says what it is: each format is one file in formats/.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.data.dataset import EvalDataset, Rows, TokenizedText
from headcount.errors import InputError
from headcount.external.models import ExternalModel, longest_of
from headcount.files import read_bytes
from headcount.hooks.wrapping import Wrapped
from headcount.registry import Registry

FORMATS = Registry("headcount.data.formats")
MOST_DATA = 2**30
"""Bytes of a file of data."""
MOST_ANSWERED = 64
"""Tokens that an encoder-decoder may answer with."""
MOST_READ = 2048
"""Tokens of a text, for models without an end: weights grow with the square."""


@dataclass(frozen=True)
class TokenizedModel:
    """A model, the tokenizer that goes with it, and how many tokens it is shown at once."""

    model: Wrapped
    tokenizer: Any
    length: int

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.model.parameters()).device

    @property
    def config(self) -> Any:
        """Of the model."""
        return self.model.model.config

    @property
    def has_decoder(self) -> bool:
        """Whether it is an encoder-decoder, which is fed two texts."""
        return "decoder_input_ids" in self.model.inputs

    def require_one_text(self) -> None:
        """Refuse a model that would take the second tensor that it is given for a second text."""
        if self.has_decoder:
            raise InputError(
                f"{type(self.model.model).__name__} is an encoder-decoder, which is scored on answers",
                "give a table with the columns source and target, with a tab between",
            )

    def tokens(self, texts: Sequence[str], *, as_target: bool = False) -> list[list[int]]:
        """Token ids with the special tokens that the model expects, cut to its length."""
        given = {"text_target" if as_target else "text": list(texts)}
        found = self.tokenizer(**given, truncation=True, max_length=self.length)["input_ids"]
        return [list(ids) for ids in found]

    def cut_note(self, texts: Iterable[str]) -> str:
        """What to say if some texts are longer than the model is shown."""
        whole = self.tokenizer(list(texts), verbose=False)["input_ids"]
        n = sum(len(ids) > self.length for ids in whole)
        return f" ({n} texts cut to {self.length} tokens)" if n else ""

    def unknown_note(self, rows: Iterable[Iterable[int]]) -> str:
        """What to say if the tokenizer does not know most of what it was given."""
        unknown, special = getattr(self.tokenizer, "unk_token_id", None), set(self.tokenizer.all_special_ids)
        tokens = [int(token) for row in rows for token in row if token == unknown or int(token) not in special]
        n = sum(token == unknown for token in tokens)
        told = f" (UNKNOWN TO THE TOKENIZER: {n:,} of {len(tokens):,} tokens; is it this model's own?)"
        return told if unknown is not None and 2 * n > len(tokens) else ""

    def padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Rows of one length, filled up on the right, and which positions hold tokens.

        Padding is the model's own token first, then the tokenizer's: some models look for it to find a text's end.
        """
        known = [getattr(holder, "pad_token_id", None) for holder in (self.config, self.tokenizer)]
        pad_id = next((int(each) for each in known if each is not None), 0)
        ids = torch.full((len(rows), max(map(len, rows))), pad_id)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        return ids.to(self.device), mask.to(self.device)


def tokenized_model(model: ExternalModel) -> TokenizedModel:
    """A model with its tokenizer."""
    if isinstance(model.model, Wrapped) and "pixel_values" in model.model.inputs:
        raise InputError(
            f"{model.name} takes images", "try it from Python: headcount.ablate_heads(model, pixels, metric)"
        )
    if not isinstance(model.model, Wrapped) or model.tokenizer is None:
        raise InputError(f"{model.name} came without a tokenizer", "save the tokenizer into the model's folder")
    return TokenizedModel(model.model, model.tokenizer, min(model.length, longest_of(model.inner)))


def read_dataset(file: str | Path, tokenized: TokenizedModel) -> EvalDataset:
    """The dataset that a file makes: by its header or, of plain text, by what the model outputs."""
    path = Path(file)
    try:
        text = read_bytes(path, MOST_DATA).decode("utf-8-sig").replace("\r\n", "\n")  # as spreadsheets write it
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text in UTF-8: {error}", "save it as plain text, in UTF-8") from error
    header = tuple(text.partition("\n")[0].rstrip("\r").split("\t"))
    formats: dict[str, Format] = {name: FORMATS.get(name) for name in FORMATS.names()}
    tables = [each for each in formats.values() if each.columns]
    for table in tables:
        if set(table.columns) <= set(header):
            return table.make(path.name, _table(path, text, header, table.columns), tokenized)
    if len(header) > 1:
        known = "; ".join(f"{' and '.join(table.columns)} ({table.summary})" for table in tables)
        raise InputError(
            f"{path} has the columns {', '.join(header)}", f"known tables have, with tabs between: {known}"
        )
    if any(set(table.columns) <= {cell.strip() for cell in re.split("[,;]", header[0])} for table in tables):
        raise InputError(f"the cells of {path} are not separated by tabs", "write it with tabs between cells")
    return formats[_for_text(tokenized)].make(path.name, text, tokenized)


def _for_text(tokenized: TokenizedModel) -> str:
    """Which format plain text is for a model."""
    model = tokenized.model.model
    classes = " ".join(getattr(tokenized.config, "architectures", None) or ()) + type(model).__name__
    tokenized.require_one_text()
    if "CausalLM" in classes or "LMHead" in classes:
        return "next-token"
    if "MaskedLM" in classes:
        return "masked-token"
    raise InputError(
        f"{type(model).__name__} outputs no tokens, so plain text cannot be scored",
        "load it with a language-modelling head, or give a table: text and label, or first, second and score",
    )


def _table(path: Path, text: str, header: Sequence[str], wanted: Sequence[str]) -> list[tuple[str, ...]]:
    """The wanted columns, line by line."""
    places, rows = [list(header).index(name) for name in wanted], []
    for number, line in enumerate(text.splitlines()[1:], start=2):  # the csv module refuses cells over 128 kB
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != len(header):
            raise InputError(
                f"line {number} of {path} has {len(cells)} cells, the header has {len(header)}",
                "cells are separated by one tab each, and hold no tabs or line breaks themselves",
            )
        rows.append(tuple(cells[place].strip() for place in places))
        if not all(rows[-1]):
            raise InputError(f"line {number} of {path} has an empty cell", f"fill in {', '.join(wanted)}")
    if len(rows) < 2:
        raise InputError(f"{path} has {len(rows)} examples", "give at least 2")
    return rows


# --- one text ---------------------------------------------------------------------------------------------------------


def require_text(text: str) -> None:
    """Refuse what is no text, or an empty one."""
    if text.encode(errors="ignore").decode() != text:
        raise InputError(f"{text!r} is no text in UTF-8", 'give one: --on "The cat sat on the mat."')
    if not text.strip():
        raise InputError("there is nothing to look at in an empty text", 'give one: --on "The cat sat on the mat."')


def text_input(model: ExternalModel, text: str) -> TokenizedText:
    """As the model's tokenizer has it; the decoder is fed the model's own answer."""
    require_text(text)
    tokenized, tokenizer = tokenized_model(model), model.tokenizer
    n_whole = len(tokenizer(text, verbose=False)["input_ids"])
    ids = tokenizer(text, truncation=True, max_length=min(longest_of(model.inner), MOST_READ))["input_ids"]
    notes = [f"the first {len(ids):,} of {n_whole:,} tokens" if len(ids) < n_whole else ""]
    notes.append(tokenized.unknown_note([ids]).strip(" ()"))
    source = torch.tensor([ids], device=tokenized.device)
    inputs, by_stack = [source, torch.ones_like(source)], {"layer": list(ids)}
    if tokenized.has_decoder:
        answer = _generated(model.inner, source)
        inputs.insert(1, answer)
        by_stack = {"encoder": list(ids), "decoder": answer[0].tolist()}
        notes.append(f"the decoder is fed the model's own answer, {answer.shape[1]} tokens")
    known = set(tokenizer.all_special_ids)
    return TokenizedText(
        tuple(inputs),
        {stack: [str(word) for word in tokenizer.convert_ids_to_tokens(each)] for stack, each in by_stack.items()},
        {stack: [token in known for token in each] for stack, each in by_stack.items()},
        "; ".join(filter(None, notes)),
    )


def _generated(model: Any, source: Tensor) -> Tensor:
    """What the decoder is fed while the model gives its own answer."""
    if not hasattr(model, "generate"):
        raise InputError(
            f"{type(model).__name__} generates nothing for its decoder to read",
            "load it with its language-modelling head (AutoModelForSeq2SeqLM)",
        )
    most = min(MOST_ANSWERED, longest_of(model) - 1)
    with torch.no_grad():
        predicted: Tensor = model.generate(
            input_ids=source, attention_mask=torch.ones_like(source), max_new_tokens=most, do_sample=False
        )
    return predicted[:, :-1] if predicted.shape[1] > 1 else predicted


# --- windows of a running text ----------------------------------------------------------------------------------------
# No row is padded, for the last piece, if too short, is left out. Windows of one text are no independent examples: what
# one is about, its neighbour is about too. So runs of neighbours make up a cluster, which intervals resample as a whole
# (Künsch 1989's block bootstrap, with blocks that do not overlap).


FEWEST_CLUSTERS = 40
"""Of a text: twenty in each half, one to choose heads on and one to measure on."""


def windows(name: str, text: str, tokenized: TokenizedModel, n_special: int = 0) -> Rows:
    """Token ids [window, position], `n_special` fewer than the model is shown at once."""
    ids = tokenized.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    length = min(tokenized.length - n_special, len(ids) // 2)
    if length < 2:
        raise InputError(f"{name} is only {len(ids)} tokens long", "give a text of a few hundred words or more")
    n = len(ids) // length
    return np.array(ids[: n * length], dtype=np.int64).reshape(n, length)


def clusters_of(n: int) -> Rows:
    """Which windows are neighbours: twice the cube root of n in a row, the rate at which such runs should grow.

    (With half as many, intervals covered 92.8 % where neighbours have a correlation of 0.5.) A text that is too short
    for so many clusters has shorter ones, in the end of one window each.

    >>> clusters_of(80).tolist()[:7], len(set(clusters_of(1000).tolist()))
    ([0, 0, 1, 1, 2, 2, 3], 50)
    """
    return np.arange(n) // max(1, min(round(2 * n ** (1 / 3)), n // FEWEST_CLUSTERS))


@dataclass(frozen=True)
class Format:
    """One format of data."""

    summary: str
    columns: tuple[str, ...]
    """The header of its file; none for plain text."""
    make: Callable[[str, Any, TokenizedModel], EvalDataset]
    """From the name of the data, its rows (or the text itself) and the model with its tokenizer."""
