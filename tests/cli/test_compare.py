"""`photinus compare` as a user meets it."""

import shlex
from pathlib import Path

import pytest

from photinus.cli.compare import compare
from photinus.cli.main import EXIT_CODES, commands
from photinus.core.errors import UsageError


def test_strategies_are_compared_in_one_table(call, job, tmp_path):
    assert commands.commands["compare"] is compare
    strategies = ("--strategy", "all_reduce", "--strategy", '{"recipe": "averaging"}')
    code, out, err = call("compare", job, *strategies, "--mbit", 100, "--folder", "side")
    assert code == 0
    assert out.splitlines()[0].split() == [
        "strategy", "error", "loss", "virtual", "wall", "sent", "rounds", "staleness", "spread",
        "examples", "passes",
    ]  # fmt: skip
    assert "rounds: how often the workers synchronized" in out
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["all_reduce", "averaging"]
    assert err.count(" seconds") == 2
    assert (tmp_path / "side" / "comparison.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--strategy", "{"), "the strategy is no JSON"),
        (("--step-seconds", "quick"), "--step-seconds must be numbers; got 'quick'"),
        (("--step-seconds", "0,-1"), "at least 0, or several such; got 0,-1\n"),
        (("--step-seconds", "1,2,3,4,5"), "for all workers, or one for each; got 5 numbers for "),
        (("--latency", "-1"), "--latency must be a number of at least 0; got -1.0"),
        (("--mbit", "inf"), "--mbit must be a number above 0; got inf"),
        (("--folder", "/proc/x"), "the folder /proc/x cannot be made; got "),
        (("--set", "strategy.quorum=9"), "each strategy that is compared is named whole"),
        (("--mbit", "-1"), "--mbit must be a number above 0; got -1.0"),
        (("--engine", "local", "--mbit", "1"), "speeds are given to the simulator only"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence_and_leaves_no_folder(
    call, job, arguments, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, _, err = call("compare", job, *arguments)
    assert not list(tmp_path.glob("runs/*"))
    assert code == EXIT_CODES["usage"]
    assert said in err
    assert "fault of photinus" not in err


def test_a_warning_of_a_training_stands_below_the_table(call, job):
    _, out, _ = call("compare", job, "--strategy", "diloco")
    assert "merge nova, int8: warning: " in out
    assert "all steps average gradients, and none is of diloco; got " in out


def test_strategies_of_the_same_words_are_told_apart_as_they_are_trained(call, job):
    texts = [f'{{"recipe": "averaging", "gradients_until": {share}}}' for share in (0, 0.5)]
    _, out, err = call("compare", job, "--strategy", texts[0], "--strategy", texts[1])
    progress = [line.rpartition(":")[0] for line in err.splitlines() if line.endswith(" seconds")]
    assert [name.rpartition(", ")[2] for name in progress] == [
        "gradients_until 0",
        "gradients_until 0.5",
    ]
    lines = out.splitlines()[1:3]
    assert all(line.startswith(name) for name, line in zip(progress, lines, strict=True))


def test_when_no_strategy_could_train_the_comparison_failed(call, job, monkeypatch):
    def broken(*_):
        raise UsageError("this one cannot")

    monkeypatch.setattr("photinus.run.job.StrategySpec.settled", broken)
    code, out, err = call("compare", job, "--strategy", "averaging")
    assert code == EXIT_CODES["failed"]
    assert "averaging" in out
    assert "this one cannot" in out
    assert "no strategy could train this job; the table says why" in err


def test_a_job_whose_own_strategy_is_not_compared_is_told_so(call, job, tmp_path):
    words = "the job's own strategy is left aside"
    assert words in call("compare", job, "--strategy", "averaging")[2]
    assert words not in call("compare", job, "--strategy", "all_reduce")[2]


def test_who_describes_the_links_of_a_job_for_spark_means_the_simulator(call, job, tmp_path):
    file = tmp_path / "on_spark.toml"
    file.write_text(Path(job).read_text().replace('engine = "simulate"', 'engine = "spark"'))
    assert 'engine = "spark"' in file.read_text()
    code, out, _ = call("compare", file, "--strategy", "averaging", "--mbit", 100)
    assert code == 0
    assert "averaging every 50 steps" in out


def test_a_comparison_that_was_stopped_continues_with_the_command_that_it_says(
    call, job, tmp_path, monkeypatch
):
    from photinus.run import compare

    real, trained = compare._one, []

    def stopped_at_the_second(spec, *rest):
        if trained:
            raise KeyboardInterrupt
        trained.append(spec.strategy.recipe)
        return real(spec, *rest)

    command = ("compare", job, "--strategy", "averaging", "--strategy", "diloco", "--folder", "all")
    monkeypatch.setattr(compare, "_one", stopped_at_the_second)
    code, _, err = call(*command)
    last = err.splitlines()[-1]
    assert code == EXIT_CODES["interrupted"]
    assert last.startswith("photinus: stopped; continue with: photinus compare job.toml ")
    monkeypatch.setattr(
        compare, "_one", lambda spec, *rest: trained.append(spec) or real(spec, *rest)
    )
    code, out, _ = call(*shlex.split(last.partition("continue with: photinus ")[2]))
    assert code == 0
    assert [trained[0], trained[1].strategy.recipe] == ["averaging", "diloco"]
    assert "averaging" in out
    assert call(*command, "--seed", "3")[2].endswith(
        "comparison of another job; name another folder\n"
    )
