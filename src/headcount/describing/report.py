"""Collect the results of several models, and build a report from them, section by section."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headcount.describing import SECTIONS
from headcount.describing.blocks import (
    Block,
    Cards,
    Commands,
    Conclusions,
    DataTable,
    HeadPatterns,
    LiveModels,
    Paragraph,
    Picture,
    Section,
    Sentence,
)
from headcount.describing.words import ONE_SEED, briefly
from headcount.tasks import TASKS

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation
    from headcount.analysis.attention import Attention
    from headcount.analysis.length_generalisation import Stretch
    from headcount.analysis.pooling_comparison import PoolingComparison
    from headcount.analysis.positions import EncodingsShown, PositionsShown
    from headcount.analysis.pruning import Pruning
    from headcount.analysis.roles import HeadRoles
    from headcount.analysis.routes import Routes
    from headcount.analysis.specialisation import Specialisation
    from headcount.analysis.verification import Verification
    from headcount.auditing.audit import Audit
    from headcount.describing.live import LiveModel
    from headcount.describing.patterns import PatternBook
    from headcount.runs.folder import TrainingRecord
    from headcount.training.evaluation import Classification, Evaluation

ORDER = (
    "live",
    "training",
    "certificate",
    "patterns",
    "roles",
    "ablation",
    "sites",
    "pruning",
    "routes",
    "events",
    "reach",
    "poolings",
    "positions",
    "mathematics",
)
"""Ids of the report's sections after the summary, in their order. Sections of other packages follow them."""
LAST = ("audit", "reproduce")
FIRST = ("certificate", "ablation", "pruning", "routes", "events", "reach", "training", "roles", "sites", "positions")
"""Ids of sections, the most important first. The first ones that have an answer get a card on the first screen."""
IN_MEMORY = "<in memory>"
"""Name of a model that exists only in memory, so that no command line can name it."""


@dataclass(frozen=True)
class ModelResults:
    """One model of a report with its stored results; a result that is missing is None or empty."""

    name: str
    """The name of the model in commands, such as `runs/add-3`."""
    title: str
    """The name of the model in sentences, such as `the adder`."""
    weights_sha256: str
    task: str | None
    """The name of the task; None for a model without a task."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of a run in one flat mapping: `encoding`, `steps`, ..."""
    log: Sequence[Mapping[str, Any]] = ()
    training: TrainingRecord | None = None
    """Duration and final losses of the training; None for a model that headcount did not train."""
    evaluation: Evaluation | Classification | None = None
    certificate: Verification | None = None
    patterns: Sequence[Attention] = ()
    """Attention of all heads on examples; the average over examples comes first, if there is one."""
    book: PatternBook | None = None
    """Attention weights of all heads on the texts, token by token; None unless `patterns` pools neighbouring tokens."""
    live: LiveModel | None = None
    """The model in the form that the HTML page can run in the browser; None if the page cannot run it."""
    why_not_live: str = ""
    """The reason why the HTML page cannot run the model, as a clause; empty if it can."""
    stats: Specialisation | None = None
    roles: HeadRoles | None = None
    ablation: Ablation | None = None
    pruning: Pruning | None = None
    routes: Routes | None = None
    stretch: Stretch | None = None
    poolings: PoolingComparison | None = None
    """A comparison of this model with models of the same encoding and other poolings."""
    positions: PositionsShown | None = None
    encodings: EncodingsShown | None = None
    """Every available position encoding, at the positions that this model uses, for a figure that compares them."""
    audit: Audit | None = None
    data_flags: str = ""
    """For a model without a task, its data as flags of the command line, such as `--data texts.txt --lines`."""
    texts: Sequence[str] = ()
    """Texts or examples that the user named, which the figures of attention show first."""
    not_measured: Sequence[str] = ()
    """Measurements that were left out for lack of time, in words."""


@dataclass(frozen=True)
class ReportResults:
    """All models of a report, in the order in which the user named them."""

    title: str
    models: tuple[ModelResults, ...]
    made: str
    """The version of headcount that made the report, and the digests of the models' weights, as text."""

    def of_task(self, task: str) -> tuple[ModelResults, ...]:
        """Return the models that were trained on a task."""
        return tuple(each for each in self.models if each.task == task)

    def with_result(self, result: str) -> tuple[ModelResults, ...]:
        """Return the models that have a result, such as `ablation`."""
        return tuple(each for each in self.models if getattr(each, result))

    def block_id(self, section: str, model: ModelResults) -> str:
        """Return a unique id for a model's block in a section, such as `ablation-the-adder-0`."""
        slug = re.sub("[^a-z0-9]", "-", model.title.lower())
        return f"{section}-{slug}-{self.models.index(model)}"


@dataclass(frozen=True)
class Report:
    """A report as a title and sections, which renderers write as HTML, Markdown or LaTeX."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    made: str
    unfinished: str = ""
    """What is still being measured, in words; empty for a finished report."""


def build_report(results: ReportResults) -> Report:
    """Return the report on these results: a summary with cards, then every section for which there are results."""
    others = [name for name in SECTIONS.names() if name not in ("summary", *ORDER, *LAST)]
    names = [*ORDER, *others, *LAST]
    if not any(each.settings for each in results.models):
        names.sort(key=lambda name: name != "audit")  # a reader of foreign models first needs to know if they are sound
    if all(each.name == IN_MEMORY for each in results.models):
        names.remove("reproduce")
    described = (SECTIONS.get(name)(results) for name in names if name in SECTIONS.names())
    sections = [_without_impossible_commands(section) for section in described if section is not None]
    summary = SECTIONS.get("summary")(results)
    made = import_module("headcount.describing.cards").cards(results, sections, FIRST)  # it imports this module
    summary = replace(summary, blocks=(Cards(made), *summary.blocks)) if made else summary
    return Report(results.title, _about(results.models), (summary, *sections), results.made)


def _about(models: Sequence[ModelResults]) -> str:
    """Return in words what each model was trained to do, or a model's title if its training is not known."""
    purposes: dict[str, list[str]] = {}
    for each in models:
        task = TASKS.get(each.task) if each.task in TASKS.names() and each.task is not None else None
        purpose = "" if task is None else task.describe_data(each.settings).partition(" (")[0]
        purposes.setdefault(purpose or each.title, []).append(each.title)
    texts = []
    for purpose, titles in purposes.items():
        n = f"{len(titles)} models" if len(titles) > 1 else titles[0]
        texts.append(f"{n}, trained {purpose}" if purpose not in titles else purpose)
    return "; ".join(texts)


def section_by_model(
    results: ReportResults,
    name: str,
    title: str,
    explanation: str,
    models: Sequence[ModelResults],
    describe: Callable[[ModelResults, str], tuple[list[Sentence], list[Block]]],
) -> Section | None:
    """Return a section with an explanation and, for each model, its sentences, figures and tables.

    `describe` takes a model and the id of its figure, and returns sentences and blocks. The first sentence of the
    first model is the answer of the section. Return None if there is no model to describe.
    """
    blocks: list[Block] = [Paragraph(explanation)]
    answers = []
    for model in models:
        (first, *others), described = describe(model, results.block_id(name, model))
        answers.append(replace(first, text=briefly(first.text, model.settings)))
        blocks += [Conclusions((replace(first, text=f"{first.text} {ONE_SEED}"), *others)), *described]
    return Section(name, title, tuple(blocks), answers[0]) if answers else None


def _without_impossible_commands(section: Section) -> Section:
    """Return the section without those commands that name a model which exists only in memory."""
    blocks = list[Block]()
    for block in section.blocks:
        if isinstance(block, Commands):
            block = replace(block, commands=tuple(each for each in block.commands if IN_MEMORY not in each))
        elif isinstance(block, DataTable | Picture | HeadPatterns | LiveModels) and IN_MEMORY in block.command:
            block = replace(block, command="")
        blocks += [] if isinstance(block, Commands) and not block.commands else [block]
    return replace(section, blocks=tuple(blocks))
