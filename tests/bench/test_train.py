"""The training benchmark runs and reports one row per network with the ratio it is judged by."""

from autorep.bench.train import KINDS, METHODS, Effort, measure, measure_methods


def test_measure_reports_every_kind_of_step():
    result = measure(("digits_net",), Effort(steps=1, batch_size=4, threads=1))
    (row,) = result["networks"]
    assert set(row["images_per_second"]) == set(KINDS)
    assert all(value > 0 for value in row["seconds_per_step"].values())
    assert row["replacement_over_distillation"] > 0


def test_every_method_of_single_relus_is_measured_beside_distillation():
    result = measure_methods("digits_net", Effort(steps=1, batch_size=4, threads=1))
    assert set(result["over_distillation"]) == set(METHODS)
    assert min(result["over_distillation"].values()) > 0
