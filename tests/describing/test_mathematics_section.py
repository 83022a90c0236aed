"""The mathematics: formulas are well-formed, errors are computed, and what was measured turns the sentences."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from told_results import ablation, cell, cells, effect, model_results, report_results, require_sound, stretch, texts

from headcount.analysis.positions import PositionsShown, TableRow, all_encodings
from headcount.analysis.positions import rotation_error as error_of_table
from headcount.describing.blocks import Formula
from headcount.describing.report import Report
from headcount.describing.sections import mathematics
from headcount.describing.sections.mathematics import section
from headcount.hooks.intervention_proof import SiteProof
from headcount.rendering.formulas import latex, mathml, plain_formula
from headcount.rendering.markdown import write_markdown


def report(*models):
    made = section(report_results(*models))
    require_sound(made)
    return made


def formulas(made):
    return {block.id.removeprefix("mathematics-"): block for block in made.blocks if isinstance(block, Formula)}


def test_it_is_for_models_with_a_task():
    assert section(report_results(model_results("a", task=None))) is None
    adder = report(model_results("a", task="addition"))
    assert "multiset" not in formulas(adder)
    assert adder.title == "The mathematics"
    assert report(model_results("a", stretch=stretch())).title == (
        "Why sinusoidal encodings extrapolate and learned tables do not"
    )


def test_every_formula_is_typeset_and_has_its_source():
    found = formulas(report(model_results("a")))
    assert list(found) == ["attention", "gate", "sinusoidal", "rotation", "kernel", "learned", "multiset"]
    for each in found.values():
        tree = ElementTree.fromstring(f"<math>{mathml(each.expression)}</math>")
        assert {node.tag for node in tree.iter()} <= {
            *("math", "mi", "mn", "mo", "mtext", "mrow", "mfrac", "msub", "msup", "msqrt", "munder"),
            *("msubsup", "mspace", "mtable", "mtr", "mtd"),
        }
        assert not any("style" in node.attrib for node in tree.iter()), "a page's policy allows none in elements"
        for node in tree.iter():
            expected = {"mfrac": 2, "msub": 2, "msup": 2, "munder": 2, "msubsup": 3}.get(node.tag)
            assert expected in (None, len(node)), (each.id, node.tag)
        assert latex(each.expression).count("{") == latex(each.expression).count("}")


def test_markdown_prints_the_formula_of_attention_with_its_keys(tmp_path):
    (file,) = write_markdown(
        Report("A report", "", (report(model_results("a", task="addition")),), ""), tmp_path / "a.md"
    )
    assert (
        r"\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^{\top}}{\sqrt{d}}\right) V" in file.read_text()
    )


def test_formulas_are_plain_text_in_a_terminal():
    found = {name: plain_formula(each.expression) for name, each in formulas(report(model_results("a"))).items()}
    assert found == {
        "attention": "Attention(Q, K, V) = softmax((Q K^⊤)/√d) V",
        "gate": "z′ = g z + (1 − g) r\noutput = ∑_h z′_h W_h + b",
        "sinusoidal": "PE(p, 2i) = sin(p ω_i)\nPE(p, 2i + 1) = cos(p ω_i)\nω_i = 10000^(−2i/d)",
        "rotation": "PE(p + k) = R(k) PE(p)\nR_i(k) = [cos(k ω_i), sin(k ω_i); −sin(k ω_i), cos(k ω_i)]",
        "kernel": "P_t · P_s = ∑_i cos(ω_i (t − s))",
        "learned": "P_p = E_p\n∂L/∂E_q = 0 for every position q that no training example has",
        "multiset": "f(x_1, …, x_n) = f(x_(π(1)), …, x_(π(n))) for every permutation π",
    }


@pytest.mark.parametrize("d_model", [2, 7, 64])
def test_sinusoids_turn_and_their_products_know_distances_alone(d_model):
    assert 0 < mathematics.rotation_error(d_model) < 1e-12
    assert 0 < mathematics.kernel_error(d_model) < 1e-11


def test_the_same_identity_by_another_route():
    table = mathematics.sinusoids(np.arange(20.0), 8).reshape(20, 8)
    assert error_of_table(table) < 1e-12
    assert error_of_table(table[::-1].copy()) > 0.1, "backwards it is another rotation"


def test_errors_are_computed_at_the_width_of_the_model():
    found = formulas(report(model_results("a", settings={"d_model": 16, "encoding": "learned"})))
    assert (
        f"at d = 16 in double precision: the largest error is {mathematics.rotation_error(16):.1e} over"
        in found["rotation"].error
    )
    assert f"{mathematics.kernel_error(16):.1e}" in found["kernel"].error
    both = [
        model_results(name, settings={"d_model": d, "encoding": name})
        for name, d in (("learned", 16), ("sinusoidal", 32))
    ]
    assert "d = 32" in formulas(report(*both))["rotation"].error
    assert "d = 128" in formulas(report(model_results("a")))["rotation"].error


def test_an_identity_that_does_not_hold_is_told():
    holds = [each.text for each in mathematics.identity_sentences(64, 1e-14, 1e-13)]
    assert "satisfy PE(p + k) = R(k) PE(p) for all p up to 512 and k up to 64 at d = 64, to within 1.0e-14" in holds[0]
    fails = [each.text for each in mathematics.identity_sentences(64, 0.2, 0.3)]
    assert "do not satisfy" in fails[0]
    assert "the largest error is 3.0e-01" in fails[1]


def test_a_model_without_positions_keeps_to_the_theorem_or_contradicts_it():
    fair = stretch("none", cells=tuple(cell(x, "adjacent", share) for x, share in ((8, 0.52), (32, 0.5))))
    made = report(model_results("none", stretch=fair))
    assert "none gets 204 of 400 (51.0 %, 95 % CI 46.1-55.9), as the theorem requires." in texts(made)
    assert "204 of 400" in formulas(made)["multiset"].error
    odd = texts(report(model_results("none", stretch=stretch("none", cells=(cell(8, "adjacent", 0.58),)))))
    assert "which is within chance (99.9 % CI" in odd
    wrong = texts(report(model_results("none", stretch=stretch("none", cells=(cell(8, "adjacent", 0.9),)))))
    assert "which contradicts the theorem" in wrong


@pytest.mark.parametrize(
    "changes", [{"label": "none, causal, max"}, {"pooling": "last", "label": "none, last"}, {"encoding": "rotary"}]
)
def test_the_theorem_is_asked_of_such_models_alone(changes):
    assert "theorem" not in texts(report(model_results("a", stretch=replace(stretch("none"), **changes))))


def test_whether_a_model_extrapolates_is_measured():
    assert (
        "could extrapolate but do not: a (one model), trained on lengths up to 16, is accurate on single adjacent "
        "swaps up to 16 (n = 200 per length, lengths up to 256)."
        in texts(report(model_results("a", stretch=stretch(up_to=16))))
    )
    assert "Sinusoidal encodings do extrapolate" in texts(report(model_results("a", stretch=stretch(up_to=64))))
    open_one = report(model_results("a", stretch=stretch(up_to=256, n=20)))
    assert "It is undecided whether sinusoidal encodings do extrapolate" in texts(open_one)
    assert cells(open_one, "mathematics-measured")[0][2] == "the same step at every position: can extrapolate"
    causal = stretch("none", label="none, causal, max")
    assert (
        cells(report(model_results("a", stretch=causal)), "mathematics-measured")[0][2]
        == "no prediction: order enters through another part of the model"
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
    made = formulas(
        report(model_results("a", positions=known[0], ablation=proven), model_results("b", positions=known[1]))
    )
    assert "contributions + bias = block output (max error 5.0e-07 of the largest entry)" in made["gate"].error
    assert "only the bias remains, exactly" in made["gate"].error
    assert "At 1 of 2, each head's slice of z depends on its own attention pattern" in made["gate"].error
    assert "The encoding of a equals this formula at 6 positions, to within" in made["sinusoidal"].error
    assert (
        "The table of b has 1 row that no training example used; the cosine similarity to the initial value is 1, to "
        "within 1.0e-08" in made["learned"].error
    )
