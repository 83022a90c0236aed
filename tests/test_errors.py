"""Messages say what was wrong and what to do; exit codes distinguish failed checks from other errors."""

from __future__ import annotations

import pytest

from headcount import errors
from headcount.errors import CheckFailed, CheckpointError, ConfigError, Fault, HeadcountError, InputError, RunError


def test_the_message_is_what_was_wrong_then_indented_advice() -> None:
    error = InputError("no head 'E9H0'", "this model has 2 layers", "list its heads")
    assert str(error) == "no head 'E9H0'\n  this model has 2 layers\n  list its heads"
    assert (error.what, error.advice) == ("no head 'E9H0'", ("this model has 2 layers", "list its heads"))


@pytest.mark.parametrize(("n", "count"), [(1, "1 fault"), (2, "2 faults")])
def test_a_config_error_holds_every_fault(n: int, count: str) -> None:
    faults = [Fault(f"model.d_{i}", i, "too small") for i in range(n)]
    error = ConfigError(faults, "see --help")
    assert error.faults == tuple(faults)
    assert error.what == f"{count} in the configuration"
    assert error.advice == (*(f"model.d_{i} = {i}: too small" for i in range(n)), "see --help")


def test_the_tree_is_the_one_that_is_drawn() -> None:
    """The docstring's tree lists every exception below its parent."""
    drawn = [line for line in (errors.__doc__ or "").splitlines() if line.lstrip(" │├└─")[:1].isupper()]
    tree = {line.lstrip(" │├└─").split()[0]: len(line) - len(line.lstrip(" │├└─")) for line in drawn if "  " in line}
    depth = {cls.__name__: cls.__mro__.index(HeadcountError) for cls in vars(errors).values() if _is_ours(cls)}
    assert set(depth) <= set(tree)
    assert {name: (tree[name] - tree["HeadcountError"]) // 4 for name in depth} == depth


def _is_ours(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, HeadcountError)


def test_only_a_failed_check_exits_with_1() -> None:
    assert CheckFailed("x").exit_code == 1
    assert {cls("x").exit_code for cls in (HeadcountError, InputError, RunError, CheckpointError)} == {2}
    assert ConfigError([]).exit_code == 2
