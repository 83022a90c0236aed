"""The mathematics: formulas are well-formed, errors are computed, and what was measured turns the sentences."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from told_results import ablation, cell, cells, effect, material, require_sound, stretch, subject, texts

from headcount.analysis.positions import PositionsShown, TableRow, all_encodings
from headcount.analysis.positions import rotation_error as error_of_table
from headcount.describing import identities
from headcount.describing.blocks import Formula
from headcount.describing.math_words import identity_sentences
from headcount.describing.sections.mathematics import section
from headcount.hooks.proof import SiteProof


def report(*subjects):
    made = section(material(*subjects))
    require_sound(made)
    return made


def formulas(made):
    return {block.id.removeprefix("mathematics-"): block for block in made.blocks if isinstance(block, Formula)}


def test_it_is_for_the_exercise_alone():
    assert section(material(subject("a", task=None), subject("b", task="copying"))) is None
    adder = report(subject("a", task="addition"))
    assert "multiset" not in formulas(adder)
    assert adder.title == "The mathematics"
    assert report(subject("a", stretch=stretch())).title == "Why sinusoidal can go on and a table cannot"


def test_every_formula_is_typeset_and_has_its_source():
    found = formulas(report(subject("a")))
    assert list(found) == ["attention", "gate", "sinusoidal", "rotation", "kernel", "learned", "multiset"]
    for each in found.values():
        tree = ElementTree.fromstring(f"<math>{each.mathml}</math>")
        assert {node.tag for node in tree.iter()} <= {
            *("math", "mi", "mn", "mo", "mtext", "mrow", "mfrac", "msub", "msup", "msqrt", "munder"),
            *("msubsup", "mspace", "mtable", "mtr", "mtd"),
        }
        assert not any("style" in node.attrib for node in tree.iter()), "a page's policy allows none in elements"
        for node in tree.iter():
            expected = {"mfrac": 2, "msub": 2, "msup": 2, "munder": 2, "msubsup": 3}.get(node.tag)
            assert expected in (None, len(node)), (each.id, node.tag)
        assert each.latex.count("{") == each.latex.count("}")


@pytest.mark.parametrize("d_model", [2, 7, 64])
def test_sinusoids_turn_and_their_products_know_distances_alone(d_model):
    assert 0 < identities.rotation_error(d_model) < 1e-12
    assert 0 < identities.kernel_error(d_model) < 1e-11


def test_the_same_identity_by_another_route():
    table = identities.sinusoids(np.arange(20.0), 8).reshape(20, 8)
    assert error_of_table(table) < 1e-12
    assert error_of_table(table[::-1].copy()) > 0.1, "backwards it is another rotation"


def test_errors_are_computed_at_the_width_of_the_model():
    found = formulas(report(subject("a", settings={"d_model": 16, "encoding": "learned"})))
    assert f"at d = 16, in double precision: at most {identities.rotation_error(16):.1e} off" in found["rotation"].error
    assert f"{identities.kernel_error(16):.1e}" in found["kernel"].error
    both = [
        subject(name, settings={"d_model": d, "encoding": name}) for name, d in (("learned", 16), ("sinusoidal", 32))
    ]
    assert "d = 32" in formulas(report(*both))["rotation"].error
    assert "d = 128" in formulas(report(subject("a")))["rotation"].error


def test_an_identity_that_does_not_hold_is_told():
    holds = [each.text for each in identity_sentences(64, 1e-14, 1e-13)]
    assert (
        "PE(p + k) is one rotation of PE(p), for every p up to 512 and k up to 64 at d = 64, to within 1.0e-14"
        in holds[0]
    )
    fails = [each.text for each in identity_sentences(64, 0.2, 0.3)]
    assert "is not one rotation" in fails[0]
    assert "3.0e-01 off" in fails[1]


def test_a_model_without_positions_keeps_to_the_theorem_or_contradicts_it():
    fair = stretch("none", cells=tuple(cell(x, "adjacent", share) for x, share in ((8, 0.52), (32, 0.5))))
    made = report(subject("none", stretch=fair))
    assert "none is right in 204 of 400 (51.0 %, 95 % interval 46.1 to 55.9), as it must be." in texts(made)
    assert "204 of 400" in formulas(made)["multiset"].error
    odd = texts(report(subject("none", stretch=stretch("none", cells=(cell(8, "adjacent", 0.58),)))))
    assert "which chance allows (99.9 % interval" in odd
    wrong = texts(report(subject("none", stretch=stretch("none", cells=(cell(8, "adjacent", 0.9),)))))
    assert "which it cannot be" in wrong


@pytest.mark.parametrize(
    "changes", [{"label": "none, causal, max"}, {"pooling": "last", "label": "none, last"}, {"encoding": "rotary"}]
)
def test_the_theorem_is_asked_of_such_models_alone(changes):
    assert "theorem" not in texts(report(subject("a", stretch=replace(stretch("none"), **changes))))


def test_that_it_can_go_on_is_held_against_whether_it_does():
    assert (
        "can go on is not that they do: a (one model), trained on lengths up to 16, is right on single adjacent swaps "
        "up to 16 (n = 200 per length, lengths up to 256)." in texts(report(subject("a", stretch=stretch(up_to=16))))
    )
    assert "Sinusoidal positions do go on" in texts(report(subject("a", stretch=stretch(up_to=64))))
    open_one = report(subject("a", stretch=stretch(up_to=256, n=20)))
    assert "do go on is undecided" in texts(open_one)
    assert cells(open_one, "mathematics-measured")[0][2] == "one step for all positions: it can go on"
    causal = stretch("none", label="none, causal, max")
    assert (
        cells(report(subject("a", stretch=causal)), "mathematics-measured")[0][2] == "nothing; order comes in elsewhere"
    )


def test_results_say_how_far_off_the_other_formulas_are():
    profiles = {each.name: each for each in all_encodings(d_model=8, n_heads=2, n_positions=6).encodings}
    rows = (TableRow(0, "trained", 1.0, 0.5, 0.5), TableRow(1, "never trained", 1.0, 0.1, 1 - 1e-8))
    known = [
        PositionsShown("a", "digest", 6, 1, None, profiles[name], own)
        for name, own in (("sinusoidal", ()), ("learned", rows))
    ]
    proven = replace(
        ablation(effect("encoder.0.self.0", 0.1)),
        proof=(
            SiteProof("encoder.0.self", 2e-7, 0.0, 1.0, 0.0),
            SiteProof("encoder.1.self", 5e-7, 0.0, 1.0, 0.0, True),
        ),
    )
    made = formulas(report(subject("a", positions=known[0], ablation=proven), subject("b", positions=known[1])))
    assert "add up to the output to within 5.0e-07 of its largest entry" in made["gate"].error
    assert "the bias alone is left, exactly" in made["gate"].error
    assert "At 1 of them, each head's slice of z was seen to follow its own attention pattern" in made["gate"].error
    assert "What a adds at 6 positions is this to within" in made["sinusoidal"].error
    assert (
        "Of 1 row of b that training never met, cosines to what it was are 1 to within 1.0e-08" in made["learned"].error
    )
