"""`photinus compare` as a user meets it."""

from pathlib import Path

import pytest

from photinus.cli.comparing import compare
from photinus.cli.main import EXIT_CODES, commands


def test_strategies_are_compared_in_one_table(call, job, tmp_path):
    assert commands.commands["compare"] is compare
    strategies = ("--strategy", "all_reduce", "--strategy", '{"recipe": "averaging"}')
    code, out, err = call("compare", job, *strategies, "--mbit", 100, "--folder", "side")
    assert code == 0
    assert out.splitlines()[0].split() == [
        "strategy", "error", "loss", "seconds", "sent", "rounds", "staleness", "spread",
    ]  # fmt: skip
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["all_reduce", "averaging"]
    assert err.count("seconds") == 3
    assert (tmp_path / "side" / "comparison.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--strategy", "{"), "the strategy is no JSON"),
        (("--step-seconds", "quick"), "step-seconds must be numbers; got 'quick'"),
        (("--mbit", "0"), "bytes_per_second of World must be a number above 0"),
        (("--engine", "local", "--mbit", "1"), "speeds are given to the simulator only"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(call, job, arguments, said):
    code, _, err = call("compare", job, *arguments)
    assert code == EXIT_CODES["usage"]
    assert said in err


def test_who_describes_the_links_of_a_job_for_spark_means_the_simulator(call, job, tmp_path):
    file = tmp_path / "on_spark.toml"
    file.write_text(Path(job).read_text().replace('engine = "simulate"', 'engine = "spark"'))
    assert 'engine = "spark"' in file.read_text()
    code, out, _ = call("compare", file, "--strategy", "averaging", "--mbit", 100)
    assert code == 0
    assert "averaging every 50 steps" in out
