"""What a ledger keeps of answers: the numbers of the recommended candidate, and of every size that was predicted."""

import pytest

from equipoise.decide.decision import answer
from equipoise.decide.ledger import add_predictions, read_ledger
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
    # 1e10 tokens are 1e10 / 4096 samples; their steps take work_s, less what a pretraining takes beside them.
    beside = found.system.time_per_step_time
    assert beside > 1
    assert rate.value == pytest.approx(beside * 1e10 / 4096 / best.work_s.value)
    assert rate.low < rate.value < rate.high


def test_a_time_that_published_results_bear_on_has_no_rate():
    found = answer(query({"workload": "bert", "accelerator": "64x h100-sxm5-80gb"}), scores=embedded.scores())
    (time,) = answer_predictions(found, verb="plan")
    assert (time.quantity, time.kind) == ("time_to_train_s", "published")


def test_nothing_is_kept_of_a_refusal():
    asked = {"workload": "llama2_7b", "accelerator": "8x h100-sxm5-80gb", "tokens": 1e12, "deadline": "1h"}
    assert answer_predictions(answer(query(asked), scores=None), verb="advise") == ()


def test_every_size_that_predict_gives_is_kept(mine):
    path = mine("num_accelerators,time_to_train_s\n1,1010\n2,510\n4,260\n8,135\n")
    found = predict(query({"workload": "any", "from": path, "at": "16,32"}), scores=None)
    kept = time_predictions(found)
    assert [each.num_accelerators for each in kept] == [16, 32]
    assert [each.value for each in kept] == [each.time_s.value for each in found.candidates]
    assert {(each.kind, each.verb, each.accelerator) for each in kept} == {("measured", "predict", None)}


def test_times_of_steps_are_no_predictions_of_trainings(mine):
    path = mine(
        "num_accelerators,step_s,global_batch_samples\n1,8,64\n2,4.1,64\n4,2.1,64\n8,1.2,64\n", "steps.csv"
    )
    found = predict(query({"workload": "any", "from": path, "at": "16"}), scores=None)
    with pytest.raises(UsageError, match="time_to_train_h"):
        time_predictions(found)


def test_the_names_of_many_runs_leave_a_line_that_is_read(tmp_path):
    path = tmp_path / f"{'n' * 180}.csv"
    rows = [f"{size},{10 + 1000 / size}" for size in (1, 2, 4, 8) for _ in range(200)]
    path.write_text("num_accelerators,time_to_train_s\n" + "\n".join(rows) + "\n")
    kept = time_predictions(
        predict(query({"workload": "any", "from": path, "at": "8", "law": "amdahl"}), scores=None)
    )
    add_predictions(tmp_path / "ledger.jsonl", kept)
    found = read_ledger(tmp_path / "ledger.jsonl")
    assert found.num_damaged == 0
    (entry,) = found.entries
    assert {f"{'n' * 180}/{number}" for number in range(601, 801)} <= set(entry.prediction.from_runs)


def test_a_time_of_ones_own_trainings_is_of_their_batch_or_of_any_and_has_no_rate(tmp_path):
    path = tmp_path / "mine.csv"

    def kept(batch):
        rows = "".join(f"{size},{hours},{batch}\n" for size, hours in ((1, 10), (2, 5.2), (4, 2.8), (8, 1.6)))
        path.write_text(f"gpus,time_h,global_batch_size\n{rows}")
        asked = query({"workload": "bert", "accelerator": "h100-sxm5-80gb", "runs": path, "at": "8"})
        found = answer(asked, scores=embedded.scores())
        (time,) = answer_predictions(found, verb="advise")
        return found.recommended.global_batch_samples, time

    advised, time = kept(257)
    assert advised != 257
    assert (time.kind, time.strategy, time.global_batch_samples) == ("measured", None, None)
    _, time = kept(advised)
    assert (time.kind, time.global_batch_samples) == ("measured", advised)
