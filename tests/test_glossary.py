"""The glossary explains every word the product shows, each once, in two sentences."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import glossary
from equipoise.errors import SpecError
from equipoise.spec.strategy import Strategy

ROOT = Path(__file__).resolve().parents[1]
TERMS = glossary.terms()
assert TERMS
# What issue texts, tables and reports use; each must be explained.
SHOWN = """
E' E speedup like for like|generation|statistical|throughput|rules|olympic mean|convergence scaling|RCP|strict|lenient
score|balance|marginal|floor|peak|cost|energy|censored|critical batch|B_crit|S(B)|silhouette|adjusted Rand index
K-means|accelerator|node|rank|axis|dim|sample|repetition|run|entry|round|division|availability|MAMF|coverage
conformal interval|USL|Amdahl|Gustafson|power law|strategy|plan|workload|time to train|global batch|backtest|interval
pooled law|baseline|reference|doubling|accelerator-hours|samples to target|equilibrium|overhead|training|verdict
data parallel|dp|tensor parallel|tp|pipeline parallel|pp|context parallel|cp|expert parallel|ep|FSDP|ZeRO|1F1B
sequence parallel|local SGD|DiLoCo|LoRA|QLoRA|PowerSGD|gradient accumulation|step|exposed communication|bubble|host floor
MFU|HFU|all-reduce|all-gather|reduce-scatter|all-to-all|activations|optimizer states|buffers|reserved memory|straggler
goodput|tornado|PUE|spot|on demand|preemption|months to break even|utilisation|tokens per parameter|topology|cluster|Pareto front|calibration|prior|profile|leave one group out|regret
step time|tokens/s|strong scaling|weak scaling|ZeRO stage|HSDP|training budget|interval coverage|trial
relative_efficiency|like_for_like_efficiency|convergence_scaling|num_failed|num_missing|score_s|lenient_s|energy_j
""".replace("E' E speedup like for like", "E'|S|speedup|like for like").replace("\n", "|")


@pytest.mark.parametrize("word", sorted({word for word in SHOWN.split("|") if word}))
def test_every_word_that_is_shown_is_explained(word: str) -> None:
    assert glossary.explain(word).meaning


@pytest.mark.parametrize("parameter", list(Strategy.__struct_fields__))
def test_every_parameter_of_a_strategy_is_explained(parameter: str) -> None:
    assert glossary.explain(parameter).meaning


def test_each_term_has_two_sentences_and_a_source() -> None:
    for term in TERMS:
        sentences = re.split(r"(?<=[.?]) (?=[A-Z])", term.meaning)
        assert len(sentences) == 2, (term.name, sentences)
        assert term.meaning.endswith(".")
        assert term.source


def test_no_word_means_two_things() -> None:
    names = [term.name.casefold() for term in TERMS]
    aliases = [alias for term in TERMS for alias in {alias.casefold() for alias in term.aliases}]
    assert aliases
    assert {alias: count for alias, count in Counter([*names, *aliases]).items() if count > 1} == {}


def test_see_also_leads_to_terms() -> None:
    names = {term.name for term in TERMS}
    for term in TERMS:
        assert set(term.see) <= names - {term.name}, term.name


def test_case_and_spaces_do_not_matter() -> None:
    assert glossary.explain("Critical  BATCH").name == "critical batch"
    assert glossary.explain("e\u2032").name == "E'"


def test_an_unknown_word_gets_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"'balence'.*balance"):
        glossary.explain("balence")
    with pytest.raises(SpecError, match=r"'mean'.*olympic mean"):
        glossary.explain("mean")
    for far in ("zzzzzzzz", "blah"):
        with pytest.raises(SpecError, match=rf"'{far}'.*`equipoise explain`"):
            glossary.explain(far)


@given(st.text(max_size=200))
def test_any_text_is_explained_or_refused(word: str) -> None:
    known = {alias.casefold() for term in TERMS for alias in (term.name, *term.aliases)}
    if " ".join(word.replace("_", " ").split()).casefold() in {
        " ".join(k.replace("_", " ").split()) for k in known
    }:
        assert glossary.explain(word)
    else:
        with pytest.raises(SpecError, match="glossary"):
            glossary.explain(word)


def test_the_page_of_the_documentation_is_up_to_date() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    spec = importlib.util.spec_from_file_location("glossary_page", ROOT / "docs" / "glossary.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert page == maker.markdown(), "run `python docs/glossary.py`"
