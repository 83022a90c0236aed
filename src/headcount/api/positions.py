"""Show how a model represents position, and how this continues beyond the trained positions."""

from dataclasses import replace

from headcount.analysis.positions import PositionsShown, all_encodings, positions_of
from headcount.api.opening import AnyModel, open_model
from headcount.api.saving import (
    Place,
    Saved,
    folder_for,
    result_name,
    save_in,
)
from headcount.figures.positions import draw_encodings, draw_positions


def show_positions(
    run: AnyModel, n_positions: int | None = None, *, save: Place = False, run_adapter: bool = False
) -> Saved[PositionsShown]:
    """Return how a model's position encoding represents positions, inside and beyond its training lengths.

    `n_positions` is the number of positions. `save` names a folder for the result, for all encodings at the same
    positions, and for figures of both; `save=True` means the model's own folder. `run_adapter` allows running the
    adapter (the user's Python file) that the folder of a pruned model names. The returned `result` is a
    `PositionsShown`.
    """
    opened = open_model(run, run_adapter=run_adapter)
    in_use = opened.encoding_in_use()
    shown = positions_of(opened.label, opened.weights_sha256, in_use, n_positions)
    folder = folder_for(opened, save)
    encodings = all_encodings(shown, d_model=in_use.encoding.d_model, n_heads=in_use.n_heads)
    first, second = result_name("positions", n=n_positions), result_name("encodings", n=n_positions)
    saved = save_in(folder, first, shown, lambda name, result: {f"positions/{name}": draw_positions(result)})
    others = save_in(folder, second, encodings, lambda name, result: {f"positions/{name}": draw_encodings(result)})
    return replace(saved, data=saved.data + others.data, figures=saved.figures + others.figures)
