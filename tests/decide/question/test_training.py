"""What is trained: the batch is the user's, what is chosen for the user is named, knobs are the workload's."""

import json

import pytest
from asking import published_scores
from hypothesis import given
from hypothesis import strategies as st

from equipoise.calibration.profiles import model_for
from equipoise.calibration.published.models import known_workload
from equipoise.decide.question.query import query
from equipoise.decide.question.training import batch_words, training, usual_batch
from equipoise.decide.strategies.strategy_search import problem
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.perfmodel.load import workload_load
from equipoise.spec.catalogue import catalogue, shipped
from equipoise.spec.workload import workload


def trained(name, *, scores=None, **stated):
    return training(query({"workload": name, **stated}), catalogue(), scores)


def test_a_batch_that_was_likely_meant_in_tokens_is_said():
    likely = trained("llama31_8b", tokens=1e12, global_batch=4_000_000, scores=published_scores())
    # 4,000,000 samples of 8,192 tokens, as against 512 (4 M tokens) that models of this size are trained with.
    assert any("32.8 B tokens" in words and "512" in words for words in batch_words(likely, 4_000_000))
    plain = trained("llama31_8b", tokens=1e12, global_batch=2048, scores=published_scores())
    assert [*batch_words(plain, 2048)] == []


def test_the_batch_of_a_users_own_model_is_kept(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    (tmp_path / "own_layers.py").write_text(
        "import torch\n"
        "def make():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 10))\n"
        "    return model, torch.zeros(32, 1000)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = trained("own_layers:make", samples=1e6)
    assert found.global_batch_samples == 32
    assert any("batch 32" in words and "--global-batch" in words for words in batch_words(found, 32))
    assert found.batch_words is None
    assert found.workload.params == 1000 * 1000 + 1000 + 1000 * 10 + 10
    # Forward 2 FLOP a weight and sample; back twice that, less the gradient of the input, which nobody needs.
    assert found.workload.train_flop_per_sample == pytest.approx(2 * 1010e3 * 3 - 2 * 1e6, rel=0.01)
    stated = trained("own_layers:make", samples=1e6, global_batch=256)
    assert (stated.global_batch_samples, stated.chosen_for_you) == (256, ())


def test_published_trainings_leave_padding_out_and_stated_amounts_are_of_full_samples():
    # Half of the tokens of BERT's sequences are padding: Krell et al. 2021, arXiv:2107.02027, abstract.
    published, stated = trained("bert", scores=published_scores()), trained("bert", samples=1e6)
    full = 512 * workload("bert").transformer.forward_flop_per_token(512) * 3
    assert stated.workload.train_flop_per_sample == pytest.approx(full)
    # Attention of half the length costs a quarter, a little of the whole at 1,024 values a token.
    assert 0.45 * full < published.workload.train_flop_per_sample < full / 2
    loads = [float(workload_load(each.workload).train_flop_per_sample) for each in (published, stated)]
    assert 0.45 < loads[0] / loads[1] < 0.5
    assert published.workload.sequence_tokens == 512
    assert known_workload("BERT", shipped()).train_flop_per_sample == pytest.approx(full)


@pytest.mark.parametrize(
    ("name", "samples", "words"),
    [
        ("mistral_7b", 512, "4 Mi tokens"),  # of 8,192; GPT-3 6.7B took 2 M (Brown et al. 2020), Llama 2 4 M
        ("gpt2", 512, "0.5 Mi tokens"),  # GPT-3 Small (Brown et al. 2020, table 2.1)
    ],
)
def test_a_language_model_of_no_published_batch_takes_the_usual_one_of_its_size_and_says_so(
    name, samples, words
):
    found = trained(name, tokens=10e9)
    assert found.global_batch_samples == samples
    assert words in found.batch_words


@pytest.mark.parametrize(
    ("name", "tokens", "published_tokens"),
    [
        ("llama3_70b", 15.6e12, 2**24),  # Llama 3.1 405B, of as many tokens (Llama team 2024, section 3.4.1)
        ("qwen3_235b_a22b", 14.8e12, 15360 * 4096),  # DeepSeek-V3 (arXiv:2412.19437, section 4.2)
        ("qwen3_235b_a22b", 8.1e12, 9216 * 4096),  # DeepSeek-V2 (arXiv:2405.04434, section 3.1.2)
        ("llama3_70b", 0.3e12, 2**22),  # LLaMA and Llama 2, the smallest
        ("llama32_1b", 3e12, 2**21),  # TinyLlama 1.1B (arXiv:2401.02385); OLMo 2 1B and MobileLLM had as many
        ("llama32_3b", 11.2e12, 2.36e6),  # SmolLM3 3B (its model card)
        ("llama32_1b", 11e9, 2**19),  # nanochat, 560 M parameters
    ],
)
def test_the_usual_batch_of_large_models_and_on_many_tokens_grows_with_them(name, tokens, published_tokens):
    found = trained(name, tokens=tokens)
    usual_tokens = found.global_batch_samples * found.workload.sequence_tokens
    assert 0.8 < usual_tokens / published_tokens < 1.3


@given(st.sampled_from(("llama3_70b", "llama32_1b")), st.floats(0.01e12, 20e12), st.floats(1.3, 3.0))
def test_a_training_of_more_tokens_is_of_more_steps(name, tokens, ratio):
    # A batch that grew as fast as the training would let a longer one take less time.
    def num_steps(tokens):
        found = trained(name, tokens=tokens)
        return tokens / (found.global_batch_samples * found.workload.sequence_tokens)

    assert num_steps(ratio * tokens) > num_steps(tokens)


def test_the_batch_of_short_published_trainings_is_not_that_of_a_long_one():
    # Results of Llama 3.1 8B (v5.1) are of 180,000 to 344,000 sequences of 8,192 tokens, at a median batch of 32
    short = trained("llama31_8b", tokens=2e9, scores=published_scores())
    assert short.global_batch_samples == 32
    assert "published" in short.batch_words
    assert trained("llama31_8b", tokens=1e12, scores=published_scores()).global_batch_samples == 512
    # 16 M tokens, as the 405B model was trained (Llama team 2024, section 3.4.1)
    assert trained("llama31_405b", tokens=15e12, scores=published_scores()).global_batch_samples == 2048


def test_a_model_takes_the_batch_of_its_paper():
    found = trained("deepseekv3_671b", tokens=14.8e12)
    assert found.global_batch_samples == 15360  # DeepSeek-AI 2024 (arXiv:2412.19437), section 4.2
    assert "DeepSeek-AI 2024" in found.batch_words


@pytest.mark.parametrize(("sequence", "samples"), [(4096, 15_360), (32_768, 1920), (131_072, 480)])
def test_a_longer_sample_keeps_the_tokens_of_the_papers_batch(sequence, samples):
    # DeepSeek-AI 2024 (arXiv:2412.19437), sections 4.2 and 4.3: pretraining and both extensions of the context.
    found = trained("deepseekv3_671b", tokens=1e12, sequence=sequence)
    assert found.global_batch_samples == samples


def test_a_config_takes_the_batch_of_its_models_paper(mine):
    config = {
        "model_type": "llama",
        "hidden_size": 16_384,
        "intermediate_size": 53_248,
        "num_attention_heads": 128,
        "num_hidden_layers": 126,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    }
    path = mine(json.dumps(config), "config.json")
    asked = {"config": path, "tokens": 15e12}
    # 16 M tokens: Llama team 2024, section 3.4.1.
    for stated, samples in (({"sequence": 8192}, 2048), ({}, 4096), ({"global_batch": 512}, 512)):
        found = training(query({**asked, **stated}), catalogue(), None)
        assert found.global_batch_samples == samples
        assert found.workload.slug == "llama31_405b"  # what is published of it is of this model
    path.write_text(json.dumps({**config, "num_hidden_layers": 120}))
    other = training(query({**asked, "tokens": 1e12}), catalogue(), None)
    assert "4 Mi tokens" in other.batch_words  # another model, of which nothing is published
    assert other.workload.slug != "llama31_405b"


def test_a_batch_that_results_span_is_left_to_be_chosen():
    assert trained("bert", scores=published_scores()).global_batch_samples is None


def test_a_short_training_is_not_a_part_of_a_step():
    # 4e5 tokens are 390 samples of 1,024, fewer than the usual 512 of a step: 97 steps of 4, but
    # 48 of 8; 1e5 are 97 samples.
    assert trained("gpt2", tokens=4e5).global_batch_samples == 4
    with pytest.raises(UsageError, match="97 samples"):
        trained("gpt2", tokens=1e5, global_batch=512)


@pytest.mark.parametrize(
    ("name", "samples"),
    [
        ("vit_large", 4096),  # Dosovitskiy et al. 2021, table 3
        ("clip_vit_l14", 32_768),  # Radford et al. 2021, table 18
        ("whisper_large_v3", 256),  # Radford et al. 2022, table 17
        ("bert_base", 256),  # Devlin et al. 2019, appendix A.2
        ("sdxl", 2048),  # Podell et al. 2023, section 2.5
    ],
)
def test_a_model_whose_paper_states_a_batch_takes_it_and_says_where_from(name, samples):
    found = trained(name, samples=4e6)
    assert found.global_batch_samples == samples
    assert workload(name).usual_batch_source in found.batch_words
    assert trained(name, samples=100).global_batch_samples == 1


def test_where_no_batch_is_usual_it_is_asked_for():
    with pytest.raises(EvidenceError) as caught:
        usual_batch(workload("wan21_14b"))
    (missing,) = caught.value.missing
    assert "--global-batch N" in missing


def test_adapters_are_trained_where_the_workload_is_of_adapters():
    lora = trained("llama2_70b_lora", scores=published_scores())
    assert lora.choices["trained"] == ("lora",)
    assert lora.choices["lora_rank"] == (workload("llama2_70b_lora").lora_rank,)
    asked = trained("llama2_7b", tokens=1e9, fix=["trained=full,lora"])
    assert asked.choices["lora_rank"] == (0, 16)


@pytest.mark.parametrize(("name", "words"), [("gpt33", "gpt3"), ("nowhere:make", "nowhere")])
def test_what_names_no_training_is_refused(name, words):
    with pytest.raises(SpecError, match=words):
        trained(name, tokens=1e9)


def test_fewer_tokens_than_a_sample_are_refused_by_their_own_name():
    with pytest.raises(UsageError, match=r"--tokens 100 .*1,024"):
        trained("gpt2", tokens=100)


def test_a_budget_is_named_in_the_unit_in_which_it_was_asked_for():
    assert "1 M samples" in trained("bert", samples=1e6, scores=published_scores()).budget.work
    assert "1 B tokens" in trained("gpt2", tokens=1e9).budget.work


def test_epochs_of_a_model_that_results_state_a_batch_of_take_their_median():
    # ImageNet (Russakovsky et al. 2015): 1,281,167 images; ResNet-50 is no language model of a usual batch
    found = trained("resnet50", epochs=90, scores=published_scores())
    assert found.global_batch_samples in range(256, 65_537)
    assert found.budget.samples_at(found.global_batch_samples) == 90 * 1_281_167
    # and of so few samples that they are less than that batch, no more than leaves it steps
    assert trained("resnet50", samples=100, scores=published_scores()).global_batch_samples == 1


@pytest.mark.parametrize(
    ("usual", "size", "shared_out"),
    [
        (1024, 24, 1008),  # 24 ranks of 42 samples; of 43, which is prime, a micro-batch would be 1 or all
        (1024, 7, 1008),  # 7 of 144
        (1024, 5, 1040),  # 5 of 208
        (1024, 64, 1024),
        (1024, 4096, 1024),  # a quarter of the accelerators share it out
        (1024, 3072, 768),  # 3,072 / 4: a quarter less, the most that a usual batch may be off by
        (1024, 2047, 1024),  # an odd number above it: nothing near is a multiple
        (1024, 700, 1050),  # three of 350: 700 and 1,400 are off by more than a quarter
    ],
)
def test_a_usual_batch_is_rounded_to_be_shared_out(usual, size, shared_out):
    asked = trained("llama2_7b", tokens=10e9)
    assert asked.global_batch_samples == usual
    nodes = catalogue().cluster("h100-sxm5-80gb")
    found = problem(asked, nodes, model_for(nodes.accelerator, asked.workload), num_best=1)
    assert set(found.batches(size)) == {usual, shared_out}
    stated = trained("llama2_7b", tokens=10e9, global_batch=usual)
    kept = problem(stated, nodes, model_for(nodes.accelerator, stated.workload), num_best=1)
    assert kept.batches(size) == (usual,)


def test_a_usual_batch_to_a_target_is_rounded_to_be_shared_out_and_named():
    # Nobody published how the samples of the Transformer grow with the batch: 2**19 tokens are usual
    asked = trained("transformer", scores=published_scores())
    nodes = catalogue().cluster("v100-sxm2-32gb")
    found = problem(asked, nodes, model_for(nodes.accelerator, asked.workload), num_best=1)
    usual, shared_out = found.batches(64)
    assert usual == 2**19 // 30
    assert shared_out % 64 == 0
    assert abs(shared_out / usual - 1) < 1 / 32
    assert f"{usual:,}" in next(batch_words(asked, shared_out))


@pytest.mark.parametrize("stated", ["etp=2", "expert_tensor_parallel_size=2"])
def test_experts_are_not_split_among_tensor_ranks(stated):
    with pytest.raises(SpecError, match=r"\betp=1\b"):
        trained("mixtral_8x7b", tokens=1e9, fix=[stated])
