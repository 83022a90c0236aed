"""Results about the ways of an event, written by hand."""

from __future__ import annotations

from typing import Any

from headcount.analysis.routes import DonorTest, PatchShare, Routes, Share, Way
from headcount.stats import Proportion

PLACES = ("1000s", "100s", "10s", "1s")
EXAMPLES = ("342+125 = 0467", "348+125 = 0473")


def share(value: float, half: float = 0.02, *, on: float | None = None, off: float | None = None) -> Share:
    return Share(value, value - half, value + half, value if on is None else on, value if off is None else off)


def patch(what: str, way: str, value: float, position: str = "", half: float = 0.02) -> PatchShare:
    return PatchShare(what, way, share(value, half), share(0.0, 0.01), position)


def way(source: str, read: str, chain: int, n: int = 200, *, is_written_before: bool = True) -> Way:
    return Way(source, read, chain, n, 200, 30.5, EXAMPLES, is_written_before)


def streams(name: str, *steps: tuple[str, str, float]) -> list[PatchShare]:
    """Return the shares of all streams: these at these places, and nothing elsewhere."""
    shares = {(stream, place): value for stream, place, value in steps}
    patches = []
    for stream in ("E0.input", "E0.stream", "E1.stream", "D0.input", "D0.stream", "D1.stream"):
        for place in PLACES[1:] if stream.startswith("E") else PLACES:
            patches.append(patch(stream, name, shares.get((stream, place), 0.0), place))
    return [*patches, patch("E0.mlp", name, 0.8)]


def routes(name: str = "runs/adder", **changes: Any) -> Routes:
    """Return a model in which E0H2 carries the carry into the 10s, and two heads move parts of it to the 1000s."""
    one, far = "1s to 10s", "1s to 1000s"
    fields: dict[str, Any] = {
        "name": name,
        "weights_sha256": "digest",
        "event": "carry",
        "places": PLACES,
        "ways": (way("1s", "10s", 1), way("1s", "1000s", 3)),
        "heads": (
            *(patch("E0H2", one, 0.91), patch("E0H0", one, 0.0), patch("X0H1", one, 0.16), patch("D0H0", one, 0.0)),
            *(patch("E0H2", far, 0.3), patch("E0H0", far, 0.2), patch("X0H1", far, 0.45, half=0.2)),
            patch("D0H0", far, 0.0),
        ),
        "blocks": (patch("E0", one, 0.95), patch("X0", one, 0.68), patch("D0", one, 0.0), patch("E0", far, 0.5)),
        "queries": (patch("E0H2", one, 0.4, "a 10s"), patch("E0H2", one, 0.42, "b 10s"), patch("E0H2", one, 0.0, "+")),
        "streams": (
            *streams(one, ("E0.input", "1s", 1.0), ("E0.stream", "10s", 0.9), ("D1.stream", "10s", 1.0)),
            *streams(far, ("E0.input", "1s", 1.0), ("E1.stream", "100s", 0.6), ("D1.stream", "1000s", 1.0)),
        ),
        "donors": (DonorTest("E0H2", "10s", Proportion.of(188, 188), Proportion.of(210, 212)),),
    }
    return Routes(**fields | changes)
