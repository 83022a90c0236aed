"""The whole experiment, small."""

import re

import pytest

from headcount.lab import EXAMPLE, run_lab


@pytest.mark.slow
def test_a_lab_trains_verifies_draws_and_reports(tiny, tmp_path):
    settings = tiny | {"digits": 3, "low": 374, "high": 814, "d_model": 8, "d_ff": 8, "n_decoder_layers": 1}
    lab = run_lab(tmp_path, quiet=True, **settings)
    assert lab.certificate.total == 441**2
    assert lab.evaluation.exact.free_running.n == 10
    text = lab.report.read_text()
    assert f"{441**2:,} sums checked, {lab.certificate.errors:,} wrong" in text
    assert f"Every head on {EXAMPLE} = " in text
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(pictures) == 2 + 3 + 3
    assert all((tmp_path / picture).exists() for picture in pictures)
    again = run_lab(tmp_path, quiet=True, **settings)
    assert again.run.digest == lab.run.digest
