"""A published training as the problem that a question would pose."""

from statistics import median

import orjson
import pytest
import written
from plans import kind_of, modelled, published_problem, recent_rounds

from equipoise.errors import SpecError, UsageError
from equipoise.runs import embedded
from equipoise.spec.mlperf import Scores


@pytest.fixture(scope="module")
def scores():
    return embedded.scores()


def test_what_is_stated_is_kept_and_the_rest_is_chosen(scores):
    stated = published_problem("bert", "h100-sxm5-80gb", scores, global_batch_samples=3072)
    assert stated.batches(64) == (3072,)
    assert stated.choices["precision"] == ("fp8",)
    chosen = published_problem("bert", "h100-sxm5-80gb", scores)
    assert len(chosen.batches(64)) > 3
    assert chosen.choices["precision"] == ("fp8",)


def test_the_working_time_is_steps_times_their_time_and_evaluation(scores):
    posed = published_problem("bert", "h100-sxm5-80gb", scores, global_batch_samples=3072)
    (found,) = posed.search_sizes((64,))
    best = posed.timed([found.best[0].strategy]).strategies[0]
    time_s = modelled(posed, [64]).by_size[64].time_s.value
    steps_s = best.step_s * best.num_samples / 3072
    assert found.best[0].training_s == pytest.approx(steps_s)
    evaluation = median(each.eval_s / each.score_s for each in scores.of("bert") if each.eval_s is not None)
    assert 0.02 < evaluation < 0.1
    assert time_s * (1 - evaluation) == pytest.approx(steps_s)


def test_what_is_not_known_is_refused(scores):
    with pytest.raises(SpecError, match="unknown-chip"):
        published_problem("bert", "unknown-chip", scores)
    with pytest.raises(UsageError, match="target"):
        published_problem("bert", "h100-sxm5-80gb", Scores(scores.of("gpt3")))


def test_kinds_of_models():
    assert (kind_of("bert"), kind_of("resnet50")) == ("transformer", "other")


def test_recent_rounds_begin_with_v3_in_order_of_time():
    assert recent_rounds(["v4.0", "v2.1", "v3.0", "v0.7", "v3.1"]) == ["v3.0", "v3.1", "v4.0"]


def test_a_record_states_its_dataset_and_four_digits(tmp_path, monkeypatch):
    monkeypatch.setattr(written, "DATA", tmp_path)
    written.write_of_dataset("record.json", {"record": {"median": 0.123456}})
    found = orjson.loads((tmp_path / "record.json").read_bytes())
    assert found == {"dataset": embedded.version(), "record": {"median": 0.1235}}
