"""What is known of some models, and the story that is told of it, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headcount.describing import SECTIONS
from headcount.describing.blocks import (
    Block,
    Commands,
    Conclusions,
    DataTable,
    HeadPatterns,
    Notice,
    Paragraph,
    Picture,
    Section,
    Sentence,
)

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation
    from headcount.analysis.attention import Attention
    from headcount.analysis.exhaustive import Certificate
    from headcount.analysis.length_generalisation import Stretch
    from headcount.analysis.poolings import PoolingComparison
    from headcount.analysis.positions import EncodingsShown, PositionsShown
    from headcount.analysis.pruning import Pruning
    from headcount.analysis.roles import HeadRoles
    from headcount.analysis.specialisation import Specialisation
    from headcount.auditing.audit import Audit
    from headcount.describing.patterns import PatternBook
    from headcount.runs.folder import TrainingRecord
    from headcount.training.evaluation import Classification, Evaluation

ORDER = (
    "training",
    "certificate",
    "patterns",
    "roles",
    "ablation",
    "sites",
    "pruning",
    "carries",
    "reach",
    "poolings",
    "positions",
    "mathematics",
    "published",
    "audit",
    "reproduce",
)
"""Of the sections after the first, which has their answers; others come behind, by name."""
FIRST = ("certificate", "ablation", "pruning", "carries", "reach", "training", "roles", "sites", "positions")
"""Whose answers stand at the beginning, if there are more than so many:"""
MOST_ANSWERS = 5
IN_MEMORY = "<in memory>"
"""The name of a model that no command can be given."""


@dataclass(frozen=True)
class Subject:
    """One model, and what is known of it; None, or nothing, for what is not."""

    name: str
    """As commands are given it."""
    title: str
    """For people, short."""
    weights_sha256: str
    task: str | None
    """addition, sortedness; None for a model without one."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What a run was trained with, flat: `encoding`, `steps`, ..."""
    log: Sequence[Mapping[str, Any]] = ()
    training: TrainingRecord | None = None
    """Duration and final losses of a run's training."""
    evaluation: Evaluation | Classification | None = None
    certificate: Certificate | None = None
    patterns: Sequence[Attention] = ()
    """Examples, the average first where there is one."""
    book: PatternBook | None = None
    """The same, token by token, where results have pooled them."""
    stats: Specialisation | None = None
    roles: HeadRoles | None = None
    ablation: Ablation | None = None
    pruning: Pruning | None = None
    stretch: Stretch | None = None
    poolings: PoolingComparison | None = None
    """Models with other poolings, on this model's encoding."""
    positions: PositionsShown | None = None
    encodings: EncodingsShown | None = None
    """Every encoding side by side, at the same positions."""
    audit: Audit | None = None
    data_flags: str = ""
    """What a model without a task is measured on, as commands are given it: `--data texts.txt --lines`."""
    texts: Sequence[str] = ()
    """Texts or examples that its patterns begin with, for they were named."""
    not_measured: Sequence[str] = ()
    """What there was no time for, in words."""

    @property
    def slug(self) -> str:
        """For ids of blocks."""
        return "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in self.title.lower())


@dataclass(frozen=True)
class Material:
    """All models of a report, in the order in which they were named."""

    title: str
    subjects: tuple[Subject, ...]
    made: str
    """By what, and when the results were made."""

    def of_task(self, task: str) -> tuple[Subject, ...]:
        """Those that do it."""
        return tuple(each for each in self.subjects if each.task == task)

    def with_(self, result: str) -> tuple[Subject, ...]:
        """Those that have this result, such as `ablation`."""
        return tuple(each for each in self.subjects if getattr(each, result))

    def block_id(self, section: str, subject: Subject) -> str:
        """Unlike all others."""
        return f"{section}-{subject.slug}-{self.subjects.index(subject)}"


@dataclass(frozen=True)
class Story:
    """What any form is written from."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    made: str


def tell(material: Material) -> Story:
    """Sections that have something to tell; before them what was asked, and their answers."""
    names = [*ORDER, *(name for name in SECTIONS.names() if name not in (*ORDER, "asked"))]
    if not any(each.settings for each in material.subjects):
        names.sort(key=lambda name: name != "audit")  # of models of others, first whether they are sound
    if all(each.name == IN_MEMORY for each in material.subjects):
        names.remove("reproduce")
    told = (SECTIONS.get(name)(material) for name in names if name in SECTIONS.names())
    sections = [_with_possible_commands(each) for each in told if each is not None]
    answers = _answers(sections)
    first = SECTIONS.get("asked")(material)
    if answers:
        # A fault of the only model is known before what was found of it; of one among several, after.
        before = Paragraph | Notice if len(material.subjects) == 1 else Paragraph
        asked = [each for each in first.blocks if isinstance(each, before)]
        faults = [each for each in first.blocks if each not in asked]
        first = Section(first.id, first.title, (*asked, Conclusions(answers), *faults))
    models = ", ".join(dict.fromkeys(each.title for each in material.subjects))
    return Story(material.title, models, (first, *sections), material.made)


def _with_possible_commands(section: Section) -> Section:
    """Leave out commands that would need a model which is in memory alone."""
    blocks = list[Block]()
    for block in section.blocks:
        if isinstance(block, Commands):
            block = replace(block, commands=tuple(each for each in block.commands if IN_MEMORY not in each))
        elif isinstance(block, DataTable | Picture | HeadPatterns) and IN_MEMORY in block.command:
            block = replace(block, command="")
        blocks += [] if isinstance(block, Commands) and not block.commands else [block]
    return replace(section, blocks=tuple(blocks))


def _answers(sections: Sequence[Section]) -> tuple[Sentence, ...]:
    """The few that matter most, in the order of the story."""
    known = [each for each in sections if each.answer]
    chosen = sorted(known, key=lambda each: FIRST.index(each.id) if each.id in FIRST else len(FIRST))[:MOST_ANSWERS]
    return tuple(each.answer for each in known if each in chosen and each.answer)
