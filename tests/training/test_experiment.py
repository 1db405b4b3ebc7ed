"""Experiments: the files in the repository, claims over made-up outcomes, and a real grid on digits."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autorep.cli.experiment_measured import squared_error
from autorep.cli.main import main
from autorep.errors import ConfigError
from autorep.settings import read_toml
from autorep.training.experiment import Claim, Experiment, Outcome, accuracies, holds, outcome, perform_with_ray
from autorep.training.runs import Run

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments").glob("*.toml"))
GRID = """
title = "two functions"
paper = "nothing"
result = "not run yet"
budgets = [400]
[base]
epochs = 1
threads = 1
[[series]]
name = "fitted"
[[series]]
name = "Nothing left"
method = "random"
function = "zero"
[[claim]]
kind = "order"
series = ["{}", "{}"]
text = "one leads"
"""


def made(series: str, budget: float, accuracy: float, flips: int = 0, excess: int = 0) -> Outcome:
    return Outcome(series, budget, 0, accuracy, int(budget), 1000, flips, excess)


def test_a_series_may_have_budgets_of_its_own(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format("fitted", "Nothing left").replace('method = "random"', "budgets = [0, 400]"))
    experiment = Experiment.read(path)
    assert [(run.series, run.budget) for run in experiment.runs(tmp_path, {})] == [
        ("Nothing left", 0),
        ("fitted", 400),
        ("Nothing left", 400),
    ]
    assert experiment.common_budgets(["fitted", "Nothing left"]) == (400,)
    assert accuracies(experiment, []) == [("fitted", "", "not run yet"), ("Nothing left", *["not run yet"] * 2)]


def test_a_series_may_have_seeds_of_its_own(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format("fitted", "Nothing left").replace('method = "random"', "seeds = [0, 3]"))
    runs = Experiment.read(path).runs(tmp_path, {})
    assert [(run.series, run.seed) for run in runs] == [("fitted", 0), ("Nothing left", 0), ("Nothing left", 3)]


def test_an_experiment_may_share_the_runs_of_another(tmp_path):
    own, other = tmp_path / "grid.toml", tmp_path / "part.toml"
    own.write_text(GRID.format("fitted", "Nothing left"))
    other.write_text('runs_of = "grid"\n' + GRID.format("fitted", "Nothing left"))
    first, second = (Experiment.read(path).runs(tmp_path / "out", {}) for path in (own, other))
    assert [run.settings.out for run in first] == [run.settings.out for run in second]
    assert first[0].settings.out.parent == tmp_path / "out" / "grid"
    Run.start(first[0].settings.out, first[0].settings, resume=False, writes=True).record(event="stages")
    assert outcome(second[0]) is None
    other.write_text(other.read_text().replace("threads = 1", "threads = 1\nclip = 4.0"))
    with pytest.raises(ConfigError, match="clip"):
        outcome(Experiment.read(other).runs(tmp_path / "out", {})[0])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_the_repository_is_valid(path):
    document = read_toml(path)
    assert path.read_text().startswith("#")
    assert {"title", "paper", "result"} <= set(document)
    if document.get("kind", "replace") == "replace":
        experiment = Experiment.read(path)
        assert experiment.claims
        runs = experiment.runs(Path("out"), {"weights": "w.safetensors"})
        assert len({run.settings.out for run in runs}) == len(runs)


@pytest.mark.parametrize(
    ("kind", "outcomes", "expected"),
    [
        ("order", [made("a", 10, 90), made("b", 10, 80)], True),
        ("order", [made("a", 10, 80), made("b", 10, 80)], False),
        ("order", [made("a", 10, 80)], None),
        ("flips", [made("a", 10, 0, flips=5), made("b", 10, 0, flips=3)], True),
        ("flips", [made("a", 10, 0, flips=3), made("b", 10, 0, flips=5)], False),
        ("spread", [made("a", 10, 80), made("b", 10, 80.9)], True),
        ("spread", [made("a", 10, 80), made("b", 10, 81.1)], False),
        ("budget", [made("a", 10, 80, excess=10), made("b", 10, 80, excess=-10)], True),
        ("budget", [made("a", 10, 80, excess=11), made("b", 10, 80)], False),
    ],
)
def test_claims_over_one_budget(kind, outcomes, expected):
    assert holds(Claim(kind, ("a", "b"), "text", points=1.0), outcomes, [10]) is expected


def test_a_gap_must_grow_as_the_budget_falls_and_an_order_hold_at_every_budget():
    wide = [made("a", 10, 90), made("b", 10, 80), made("a", 20, 92), made("b", 20, 91)]
    assert holds(Claim("gap", ("a", "b"), ""), wide, [20, 10]) is True
    narrow = [made("a", 10, 90), made("b", 10, 89), made("a", 20, 92), made("b", 20, 90)]
    assert holds(Claim("gap", ("a", "b"), ""), narrow, [20, 10]) is False
    crossed = [made("a", 10, 90), made("b", 10, 80), made("a", 20, 90), made("b", 20, 91)]
    assert holds(Claim("order", ("a", "b"), ""), crossed, [10, 20]) is False


def test_a_faster_series_must_also_be_no_less_accurate():
    def timed(series: str, accuracy: float, wan: float) -> Outcome:
        return replace(made(series, 10, accuracy), private_seconds={"wan": wan})

    claim = Claim("faster", ("a", "b"), "")
    assert holds(claim, [timed("a", 90, 0.7), timed("b", 90, 1.0)], [10]) is True
    assert holds(claim, [timed("a", 89, 0.7), timed("b", 90, 1.0)], [10]) is False
    assert holds(claim, [timed("a", 91, 1.0), timed("b", 90, 1.0)], [10]) is False
    assert holds(claim, [made("a", 10, 91), timed("b", 90, 1.0)], [10]) is False  # it did not compile


def test_means_and_spreads_over_seeds(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format("fitted", "Nothing left"))
    rows = accuracies(Experiment.read(path), [made("fitted", 400, 80), made("fitted", 400, 82)])
    assert rows == [("fitted", "81.00 ± 1.00"), ("Nothing left", "not run yet")]


def test_a_grid_runs_once_and_a_failed_claim_is_exit_1(baseline, tmp_path, capsys):
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format("fitted", "Nothing left"))
    weights = str(baseline[0] / "model.safetensors")
    arguments = ["experiment", str(path), "--out", str(tmp_path / "out"), "--weights", weights, "--jobs", "2"]
    assert main([*arguments, "--no-run-missing"]) == 0
    assert "not run yet" in capsys.readouterr().out
    assert main(arguments) == 0
    folder = tmp_path / "out" / "grid"
    logs = {name: (folder / f"{name}-400-0" / "log.jsonl").read_bytes() for name in ("fitted", "nothing-left")}
    record = json.loads((folder / "result.json").read_text())
    assert [one["relus"] for one in record["outcomes"]] == [400, 400]
    for one in record["outcomes"]:
        seconds = one["private_seconds"]
        assert 0 < seconds["loopback"] < seconds["lan"] < seconds["wan"]
    assert (folder / "figure.png").stat().st_size > 5000
    path.write_text(GRID.format("Nothing left", "fitted"))
    capsys.readouterr()
    assert main(arguments) == 1  # the claim turned round, nothing run again
    out = capsys.readouterr().out
    assert "to go" not in out
    assert "DOES NOT HOLD: one leads" in out
    assert logs == {name: (folder / f"{name}-400-0" / "log.jsonl").read_bytes() for name in logs}


def test_a_run_that_fails_is_told_and_is_exit_1(tmp_path, capsys):
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format("fitted", "Nothing left").replace("budgets = [400]", "budgets = [5000]"))
    (tmp_path / "w.safetensors").write_bytes(b"no weights")
    weights = str(tmp_path / "w.safetensors")
    assert main(["experiment", str(path), "--out", str(tmp_path / "out"), "--weights", weights]) == 1
    assert "FAILED fitted-5000-0: " in capsys.readouterr().out


def test_mistakes_in_a_file_are_named(tmp_path, monkeypatch):
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format("fitted", "other"))
    with pytest.raises(ConfigError, match="names no such series: other"):
        Experiment.read(path)
    path.write_text(GRID.format("fitted", "fitted").replace('function = "zero"', "functoin = 1"))
    with pytest.raises(ConfigError, match="did you mean 'function'"):
        Experiment.read(path).runs(tmp_path, {})
    monkeypatch.chdir(ROOT)
    assert main(["experiment", "fig66"]) == 2


def test_functions_are_as_far_from_the_relu_as_their_closed_forms_say():
    assert squared_error("identity", 0.0, 2**0.5) == pytest.approx(1.0, rel=1e-5)
    assert squared_error("zero", 0.0, 2**0.5) == pytest.approx(1.0, rel=1e-5)
    assert squared_error("dapa2", 0.0, 2**0.5) == pytest.approx(0.022535, rel=1e-3)


def test_figure_6_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["experiment", "fig6", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "fig6" / "result.json").read_text())["errors"]["square"] == pytest.approx(8.486, 1e-3)


def test_a_binary_network_stands_beside_others(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["experiment", "xonn", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "xonn" / "result.json").read_text())["networks"]
    assert rows[0]["signs"] == rows[0]["comparisons"] == 173_056
    assert rows[0]["offline_bytes"] < 0.5 * rows[2]["offline_bytes"]  # a bit is paid out, not a number


@pytest.mark.slow
def test_a_grid_runs_on_a_local_ray_cluster_of_two_workers(baseline, tmp_path):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    path = tmp_path / "grid.toml"
    path.write_text(GRID.format("fitted", "Nothing left"))
    weights = str(baseline[0] / "model.safetensors")
    runs = Experiment.read(path).runs(tmp_path / "out", {"weights": weights})
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, logging_level=30)
        assert sum(node["Alive"] for node in ray.nodes()) == 3
        assert perform_with_ray(runs, cpus=1, out=tmp_path / "out") == []
        assert (tmp_path / "out" / "ray").is_dir()
    finally:
        ray.shutdown()
        cluster.shutdown()
    found = [outcome(run) for run in runs]
    assert all(one is not None and one.relus == 400 for one in found)
