"""The settings of a run: one section each for the task, the model and the training, and one seed.

No two sections have a setting of the same name, so `n_heads=2` (or `--n-heads 2`) needs no section.

>>> RunConfig.build("addition", n_heads=2, steps=10).model.n_heads
2
>>> RunConfig.build("addition", preset=("older",)).task.range
(0, 999)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from headcount.config import field_names, parse, type_adapter
from headcount.encodings import ENCODINGS
from headcount.errors import ConfigError, Fault, InputError
from headcount.models.config import MODEL_CONFIGS, DecoderOnlyConfig, StackConfig
from headcount.suggestions import suggestion
from headcount.tasks import TASKS
from headcount.tasks.base import SequenceTask, Task
from headcount.training.config import TrainingConfig

SCHEMA = 1


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run, as stored in `config.json`."""

    task_name: str
    seed: int
    task: Any
    model: Any
    training: TrainingConfig

    @staticmethod
    def sections(task_name: str) -> dict[str, type]:
        """Return the settings class of each section (task, model and training) for runs of a task."""
        task = TASKS.get(task_name)
        return {"task": task.config_class, "model": MODEL_CONFIGS[task.model_kind], "training": TrainingConfig}

    @classmethod
    def defaults(cls, task_name: str) -> dict[str, dict[str, Any]]:
        """Return the settings whose defaults a task changes, by section, such as {"training": {"steps": 1800}}."""
        own = TASKS.get(task_name).defaults
        return {section: dict(own.get(section, {})) for section in cls.sections(task_name)}

    @classmethod
    def build(
        cls,
        task_name: str,
        *,
        base: RunConfig | None = None,
        seed: int | None = None,
        preset: str | Sequence[str] = (),
        **settings: Any,
    ) -> RunConfig:
        """Return the settings of `base` (default: the task's defaults), changed by presets and by `settings`.

        Later ones win: `settings` over presets, and presets over `base`. One `ConfigError` lists all faults.
        """
        sections, presets = cls.sections(task_name), TASKS.get(task_name).presets
        if base and base.task_name != task_name:
            raise InputError(
                f"the base settings are for the task {base.task_name}, not for {task_name}",
                f"start from the settings of a run on {task_name}",
            )
        start = base.to_dict() if base else cls.defaults(task_name)
        merged = {section: dict(start.get(section, {})) for section in sections}
        for name in [preset] if isinstance(preset, str) else preset:
            if name not in presets:
                raise InputError(f"no preset {name!r} for {task_name}", suggestion(name, tuple(presets)))
            for section, values in presets[name].settings.items():
                merged[section] |= values
        places = {field: section for section, part in sections.items() for field in field_names(part)}
        unknown = []
        for name, value in settings.items():
            if name in places:
                merged[places[name]][name] = value
            else:
                unknown.append(Fault(name, value, f"no such setting; {suggestion(name, tuple(places))}"))
        return cls._checked(task_name, (base.seed if base else 0) if seed is None else seed, merged, unknown)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunConfig:
        """Build the settings from plain data, such as the contents of `config.json`; one error lists all faults."""
        if data.get("schema") != SCHEMA:
            raise InputError(
                f"the settings have the format version {data.get('schema')!r}, but this headcount reads only version "
                f"{SCHEMA}"
            )
        known = ("schema", "task_name", "seed", "task", "model", "training")
        unknown = [name for name in data if name not in known]
        faults = [Fault(name, data[name], f"no such section; {suggestion(name, known)}") for name in unknown]
        faults += [Fault(name, None, "is missing") for name in known if name not in data]
        if (task := data.get("task_name")) not in TASKS.names():
            raise ConfigError([*faults, Fault("task_name", task, f"must be one of: {', '.join(TASKS.names())}")])
        return cls._checked(data.get("task_name", ""), data.get("seed", 0), data, faults)

    @classmethod
    def _checked(
        cls, task_name: str, seed: Any, settings: Mapping[str, Mapping[str, Any]], faults: list[Fault]
    ) -> RunConfig:
        """Build validated settings from plain data; one error lists the given `faults` and all further faults."""
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            faults.append(Fault("seed", seed, "must be an integer of at least 0"))
        try:
            parsed = parse(cls.sections(task_name), settings)
        except ConfigError as error:
            raise ConfigError([*faults, *error.faults]) from error
        task, model = TASKS.get(task_name)(parsed["task"]), parsed["model"]
        faults += _id_faults(task, model) if isinstance(model, DecoderOnlyConfig) else _position_faults(task, model)
        if faults:
            raise ConfigError(faults)
        return cls(task_name=task_name, seed=seed, **parsed)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data for JSON."""
        parts = {section: getattr(self, section) for section in self.sections(self.task_name)}
        data = {section: type_adapter(type(part)).dump_python(part) for section, part in parts.items()}
        if not self.model.pruned:  # a whole model has no list of pruned heads
            del data["model"]["pruned"]
        if not self.training.snapshots:
            del data["training"]["snapshots"]
        return {"schema": SCHEMA, "task_name": self.task_name, "seed": self.seed, **data}

    def to_json(self) -> str:
        """Return all settings of the run as the JSON text of `config.json`."""
        return json.dumps(self.to_dict(), indent=1) + "\n"

    def differences(self, other: RunConfig) -> list[str]:
        """Return a line for each setting that differs in `other`, such as `model.n_heads: 8 here, 2 requested`."""
        ours, theirs = self._flat(), other._flat()
        names = [name for name, value in ours.items() if value != theirs.get(name)]
        return [f"{name}: {ours[name]!r} here, {theirs.get(name)!r} requested" for name in names]

    def _flat(self) -> dict[str, Any]:
        parts = {section: vars(getattr(self, section)) for section in self.sections(self.task_name)}
        settings = {f"{section}.{name}": value for section, part in parts.items() for name, value in part.items()}
        return {"task_name": self.task_name, "seed": self.seed, **settings}


def _id_faults(task: SequenceTask, model: DecoderOnlyConfig) -> list[Fault]:
    """Return the faults in the settings of a decoder-only model's position ids."""
    encoding, known = ENCODINGS.get(model.encoding), ("order", *task.id_schemes)
    if model.position_ids not in known:
        return [Fault("model.position_ids", model.position_ids, suggestion(model.position_ids, known))]
    faults = []
    if model.position_ids != "order":
        try:
            task.id_schemes[model.position_ids](task.config)
        except ValueError as error:
            return [Fault("model.position_ids", model.position_ids, str(error))]
        if encoding.forces_causal:
            why = "it hides keys with larger ids, which these position ids give to earlier tokens: choose another one"
            faults.append(Fault("model.encoding", model.encoding, why))
    if encoding.needs_length:
        why = "the length of an answer is not known while it is decoded: choose another encoding"
        faults.append(Fault("model.encoding", model.encoding, why))
    if model.random_start is not None and not encoding.uses_ids:
        why = "the start of the ids has no effect without a position encoding: choose an encoding"
        faults.append(Fault("model.random_start", model.random_start, why))
    if encoding.has_table and model.n_positions < (n_ids := n_training_ids(task, model)):
        why = f"training uses positions up to {n_ids - 1}: raise n_positions to {n_ids}"
        faults.append(Fault("model.n_positions", model.n_positions, why))
    return faults


def n_training_ids(task: Task, model: StackConfig) -> int:
    """Return how many position ids occur in training: they are below this number."""
    if not isinstance(model, DecoderOnlyConfig):
        return getattr(model, "random_positions", None) or task.longest
    sequence_task = cast(SequenceTask, task)
    n_source, n_fed = len(sequence_task.source_positions), len(sequence_task.decoder_input_positions)
    n_ids = n_source + n_fed
    if model.position_ids != "order":
        scheme = sequence_task.id_schemes[model.position_ids](task.config)
        source = sequence_task.encode(sequence_task.split("validation")).source
        ids = scheme.ids(source, np.arange(n_source)[None], np.arange(n_fed)[None])
        n_ids = 1 + max(int(part.max()) for part in ids)
    return n_ids + (model.random_start - 1 if model.random_start else 0)


def _position_faults(task: Task, model: StackConfig) -> list[Fault]:
    """Return the faults in the model's position settings that make it unfit for the lengths of the task's examples."""
    ids, encoding = getattr(model, "random_positions", None), ENCODINGS.get(model.encoding)
    n_ids = max(task.longest, ids or 0)
    faults = []
    if encoding.needs_length and task.output_type == "sequence":
        why = "this encoding needs the final length, which is not known while an answer is decoded: choose another"
        faults.append(Fault("model.encoding", model.encoding, why))
    if ids is not None and not encoding.uses_ids:
        why = "random position ids have no effect without a position encoding: choose an encoding"
        faults.append(Fault("model.random_positions", ids, why))
    if ids is not None and ids < task.longest:
        why = f"is below the longest sequence of the task, {task.longest} tokens: raise random_positions"
        faults.append(Fault("model.random_positions", ids, why))
    if encoding.has_table and model.n_positions < n_ids:
        why = f"training uses position ids up to {n_ids - 1}: raise n_positions to {n_ids}"
        faults.append(Fault("model.n_positions", model.n_positions, why))
    return faults
