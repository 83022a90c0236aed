"""What is said of an ablation, as blocks: the ranking, bands, warnings, the method, and what broke."""

import csv
import io
import re
from dataclasses import fields, replace

from rich.console import Console
from tests.figures.test_ablation_figures import as_loss, made

from headcount.analysis.ablation import Effect
from headcount.describing.blocks import Conclusions, DataTable, Notice, Paragraph
from headcount.describing.sections.ablation import describe, ranking_table
from headcount.experiments.decoding_check import FailureProfile, Group
from headcount.heads import HeadId
from headcount.rendering.markdown import markdown_text
from headcount.rendering.terminal import block_lines
from headcount.training.evaluation import WrongAnswer


def tables(result):
    return {block.id: block for block in describe(result) if isinstance(block, DataTable)}


def sentences(result):
    return [each.text for block in describe(result) if isinstance(block, Conclusions) for each in block.sentences]


def notes(result):
    return [block.text for block in describe(result) if isinstance(block, Paragraph)]


def warnings(result):
    return [block.text for block in describe(result) if isinstance(block, Notice)]


def printed(result, width):
    console = Console(width=width)
    with console.capture() as capture:
        for block in describe(result):
            for line in block_lines(block):
                console.print(line)
    return capture.get()


def without_bands(result):
    return replace(result, heads=tuple(replace(e, band=None, examples_needed=None) for e in result.heads))


def test_an_ablation_is_described_with_the_costliest_head_to_remove_first() -> None:
    heads = [f"layer.0.self.{i}" for i in range(3)]
    result = made(("resample", "zero"), heads)
    drops = {"zero": (0.01, 0.3, 0.2), "resample": (0.9, 0.0, 0.1)}
    effects = tuple(replace(e, drop=drops[e.replacement][heads.index(e.head)]) for e in result.heads)
    result = replace(result, heads=effects)
    expected = ["L0H1", "L0H2", "L0H0"]
    table = ranking_table(result, result.conditions[0], "ranking")
    assert ([row[0].text for row in table.rows], table.columns[1]) == (expected, "rank (zero)")
    assert re.findall(r"^\| (L0H\d)", markdown_text([table]), re.M) == expected
    assert re.findall(r"^layer\S+ +(\S+) +zero", repr(result), re.M) == expected


def test_the_ranking_has_the_numbers() -> None:
    result = made()
    table = tables(result)["ablation-ranking"]
    assert table.columns == ("head", "rank (zero)", "gradient", "zero", "mean", "resample")
    for i, (row, effects) in enumerate(zip(table.rows, result.ranking().values(), strict=True)):
        for cell, e in zip(row[3:], effects.values(), strict=True):
            dagger = "†" if e.n == 40_000 else ""
            assert cell.text == f"{100 * e.drop:.2f} [{100 * e.low:.2f}, {100 * e.high:.2f}] {e.band}{dagger}"
            assert cell.mark == ("strong" if e.p < 0.05 else "")
            assert cell.value == 100 * e.drop
        assert row[2].text == f"{0.01 * (i + 1):.1e}"
    assert table.rows[5][1].text == "6-8", "a rank is a range where intervals overlap"
    assert "90.00 % [88.00, 92.00] with all heads, n = 2,000 (the test set)" in table.caption
    assert "the head was measured again on 40,000 fresh examples" in table.note
    assert "Holm correction over the 9 heads of each ablation" in table.note


def test_at_80_columns_no_number_is_cut() -> None:
    """The former table had one row per head, whose cells were cut at 80 columns."""
    result = made()
    text = printed(result, 80)
    assert max(map(len, text.splitlines())) <= 80
    for e in result.heads:
        assert f"{100 * e.drop:.2f} [{100 * e.low:.2f}, {100 * e.high:.2f}] {e.band}" in text


def test_of_many_heads_all_are_in_the_table() -> None:
    result = made(("zero", "mean"), [f"layer.{i}.self.{j}" for i in range(7) for j in range(8)])
    assert len(tables(result)["ablation-ranking"].rows) == 56


def test_bands_are_counted_and_say_what_would_decide() -> None:
    result = made(("zero",), [f"layer.0.self.{i}" for i in range(12)])
    assert sentences(result)[0] == (
        "L0H0 is the most important head: removing it costs 35.4 points (95 % CI 33.4-38.4, n = 2,000)."
    )
    assert (
        "For 3 of 12 heads (25.0 %), the 95 % CI of the drop under zero ablation lies below 1 point"
        in sentences(result)[1]
    )
    table = tables(result)["ablation-bands"]
    assert table.columns[:5] == ("ablation", "critical", "important", "redundant", "undecided")
    ((replacement, *counts, needed),) = table.rows
    assert (replacement, [cell.text for cell in counts]) == ("zero", ["3", "3", "3", "3"])
    assert needed == "L0H3 (1,200 to 99,000), L0H7 (no number: the drop lies at a limit) and L0H11 (3,200 or more)"


def test_gradients_are_compared_with_ablation() -> None:
    result = made(("zero",), [f"layer.0.self.{i}" for i in range(12)])
    (row,) = tables(result)["ablation-gradients"].rows
    texts = [each if isinstance(each, str) else each.text for each in row]
    assert texts == ["zero", "not normalised", "0.50 [0.10, 0.80]", "0.0123", "4 of 12"]
    (agreement,) = result.conditions[0].agreements
    flat = replace(result.conditions[0], agreements=(replace(agreement, found=None),), decoded=0)
    flat = replace(result, conditions=(flat,))
    assert tables(flat)["ablation-gradients"].rows[0][2].text == "all drops are equal"
    assert not any("decoded" in note for note in notes(flat))
    bare = replace(result, conditions=(replace(result.conditions[0], importances=(), agreements=()),))
    assert "ablation-gradients" not in tables(bare)
    assert "gradient" not in tables(bare)["ablation-ranking"].columns


def test_the_method_is_described() -> None:
    result = made(("zero",), [f"layer.0.self.{i}" for i in range(12)])
    assert any("Mean ablation uses the mean over 32,768 inputs" in note for note in notes(result))
    assert any("takes the output from 4 other examples in turn" in note for note in notes(result))
    assert "80 answers under ablation were also decoded token by token" in notes(result)[-2]
    verified = "head contributions + bias = block output (max error 1e-07); with all heads off, only the bias remains"
    own = "each head's output depends only on its own attention pattern"
    assert notes(result)[-1] == f"Verified at 3 attention blocks: {verified}; {own}."
    unchecked = replace(result, proof=(replace(result.proof[0], follows_attention=False), *result.proof[1:]))
    assert notes(unchecked)[-1] == (
        f"Verified at 3 attention blocks: {verified}. At 1 of them, it was not checked whether {own}."
    )
    unused = replace(result, proof=(*result.proof[:-1], replace(result.proof[-1], is_used=False)))
    sentence = f"Noise in place of the heads of {result.proof[-1].site} does not change the model's output."
    assert notes(unused)[-1].endswith(f". {sentence}")
    assert sum("Verified at" in note for note in notes(made(("zero",), lengths=(4, 6)))) == 1, "once for all lengths"


def test_removal_comes_before_other_replacements() -> None:
    result = made(("resample", "zero", "mean"))
    assert "removing" in sentences(result)[0]
    assert "under resample ablation" in sentences(result)[1]
    assert [row[0] for row in tables(result)["ablation-bands"].rows] == ["zero", "resample", "mean"]
    harmless = [HeadId.parse(head).short for head in result.harmless()]
    assert harmless
    assert f"{len(harmless)} heads are redundant under every ablation (resample, zero and mean): {harmless[0]}" in (
        " ".join(sentences(result))
    )


def test_a_loss_that_few_examples_carry_is_marked() -> None:
    loss = as_loss(made(("zero",)))
    few = [e.short for e in loss.heads if e.carried > 0.5]
    assert few
    (text,) = (each for each in warnings(loss) if "ten of 2,000 examples make up over half of the total" in each)
    assert all(f"{name} (zero)" in text for name in few)
    even = replace(loss, heads=tuple(replace(e, carried=0.2) for e in loss.heads))
    assert not any("ten of" in each for each in warnings(even))


def test_a_loss_rises_and_has_no_bands() -> None:
    result = as_loss(made(("zero", "mean")))
    table, first = tables(result)["ablation-ranking"], result.heads[0]
    assert table.rows[0][3].text == f"{first.drop:.4f} [{first.low:.4f}, {first.high:.4f}]"
    assert "rise of the loss (nats)" in table.caption
    assert "0.2500 [0.2000, 0.3000] with all heads" in table.caption
    assert "McNemar" not in table.note
    assert "undecided" not in printed(result, 200)
    assert "ablation-bands" not in tables(result)


def test_where_nothing_can_be_lost_there_are_no_bands() -> None:
    bare = without_bands(made(("zero",), [f"layer.0.self.{i}" for i in range(4)]))
    (text,) = warnings(bare)
    assert text.startswith(
        "No head gets a band of importance: the model scores 90.00 % [88.00, 92.00] with all heads, and the best"
    )
    assert "constant answer scores 50.00 %." in text
    assert "critical" not in printed(bare, 200)


def test_what_broke_is_a_table_for_each_head_that_broke_something() -> None:
    result = made(("zero", "mean"))
    wrong = WrongAnswer("15+17", "032", "022", "lost the carry from the 1s")
    broke = FailureProfile(
        "encoder.0.self.0",
        "zero",
        7,
        2000,
        (Group("digit", "10s", 6, 7), Group("digit", "1s", 0, 7)),
        (Group("fault", "lost the carry from the 1s", 4, 7),),
        (Group("carries", "1", 7, 900), Group("carries", "0", 0, 1100)),
        (wrong,),
    )
    harmless = replace(broke, head="encoder.0.self.1", n_broken=0)
    failed = replace(result, conditions=(replace(result.conditions[0], failures=(harmless, broke)),))
    (table,) = [each for name, each in tables(failed).items() if "failures" in name]
    assert table.caption == "Without encoder.0.self.0 (zero ablation): 7 of 2,000 answers become wrong"
    assert table.rows == (
        ("digit: 10s", "6 of 7"),
        ("fault: lost the carry from the 1s", "4 of 7"),
        ("carries: 1", "7 of 900"),
        ("15+17: predicted 022, should be 032", "lost the carry from the 1s"),
    )


def test_markdown_has_the_ranking_and_escapes_names() -> None:
    result = replace(made(), name="runs/a|b*c`d\ne")
    table = tables(result)["ablation-ranking"]
    text = markdown_text(describe(result))
    start = text[text.index("| head |") :]
    lines = start[: start.index("\n\n")].splitlines()
    cells = [[cell.strip().replace("\\", "").strip("*") for cell in line.strip("|").split(" | ")] for line in lines]
    assert cells == [list(table.columns), ["---|" * 5 + "---"], *([cell.text for cell in row] for row in table.rows)]
    assert "**runs/a\\|b\\*c\\`d e: drop (points) without each head; " in text
    for words in (*sentences(result), *notes(result)):
        assert words in text.replace("\\", "")


def test_csv_is_exact_and_holds_no_formula() -> None:
    result = made(lengths=(16, 64))
    odd = replace(result.heads[0], metric='=1+1,"x"\nnext', drop=-0.1, examples_needed=None)
    result = replace(result, heads=(odd, *result.heads[1:]))
    rows = list(csv.DictReader(io.StringIO(result.to_csv(), newline="")))
    assert list(rows[0]) == [field.name for field in fields(Effect)]
    assert rows[0]["metric"] == '\'=1+1,"x"\nnext'
    assert len(rows) == 2 * 3 * 9
    for row, each in zip(rows, result.heads, strict=True):
        assert (float(row["drop"]), float(row["p"]), int(row["length"])) == (each.drop, each.p, each.length)
        assert row["examples_needed"] == ("" if each.examples_needed is None else str(each.examples_needed))
        for name, value in row.items():
            if value[:1] in tuple("=+-@") and value:
                assert float(value) == getattr(each, name), "only numbers"
