"""What a ledger keeps of answers: the numbers of the recommended candidate, and of every size that was predicted."""

import pytest

from equipoise.decide.decision import answer
from equipoise.decide.prediction import answer_predictions, predict, time_predictions
from equipoise.decide.question.query import query
from equipoise.errors import UsageError
from equipoise.runs import embedded


def test_of_an_answer_the_recommended_time_and_rate_are_kept():
    found = answer(
        query({"workload": "llama2_7b", "accelerator": "8x h100-sxm5-80gb", "tokens": 1e10}), scores=None
    )
    best = found.recommended
    time, rate = answer_predictions(found, verb="advise")
    assert (time.quantity, time.value, time.low) == ("time_to_train_s", best.time_s.value, best.time_s.low)
    assert (time.kind, time.verb, time.num_accelerators) == ("model", "advise", best.num_accelerators)
    assert (time.strategy, time.global_batch_samples) == (best.strategy.text(), best.global_batch_samples)
    # 1e10 tokens are 1e10 / 4096 samples; their steps, without interruptions, take work_s.
    assert rate.value == pytest.approx(1e10 / 4096 / best.work_s.value)
    assert rate.low < rate.value < rate.high


def test_a_time_that_published_results_bear_on_has_no_rate():
    found = answer(query({"workload": "bert", "accelerator": "64x h100-sxm5-80gb"}), scores=embedded.scores())
    (time,) = answer_predictions(found, verb="plan")
    assert (time.quantity, time.kind) == ("time_to_train_s", "published")


def test_nothing_is_kept_of_a_refusal():
    asked = {"workload": "llama2_7b", "accelerator": "8x h100-sxm5-80gb", "tokens": 1e12, "deadline": "1h"}
    assert answer_predictions(answer(query(asked), scores=None), verb="advise") == ()


def test_every_size_that_predict_gives_is_kept(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("num_accelerators,time_to_train_s\n1,1010\n2,510\n4,260\n8,135\n")
    found = predict(query({"workload": "any", "from": path, "at": "16,32"}), scores=None)
    kept = time_predictions(found)
    assert [each.num_accelerators for each in kept] == [16, 32]
    assert [each.value for each in kept] == [each.time_s.value for each in found.candidates]
    assert {(each.kind, each.verb, each.accelerator) for each in kept} == {("measured", "predict", None)}


def test_times_of_steps_are_no_predictions_of_trainings(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("num_accelerators,step_s,global_batch_samples\n1,8,64\n2,4.1,64\n4,2.1,64\n8,1.2,64\n")
    found = predict(query({"workload": "any", "from": path, "at": "16"}), scores=None)
    with pytest.raises(UsageError, match="time_to_train_h"):
        time_predictions(found)
