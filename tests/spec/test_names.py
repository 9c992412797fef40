"""Spellings of availability, division and framework: all of the published ones resolve, unknown words are reported."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.runs.sources import open_source
from equipoise.spec import canonical, mlperf
from equipoise.spec.mlperf import availability_slug, division_slug, framework_name, framework_slug


@pytest.mark.parametrize(
    ("raw", "slug"),
    [
        ("Available on-premise", "available_onprem"),
        ("available on premise", "available_onprem"),
        ("Available on premise", "available_onprem"),
        ("onprem", "available_onprem"),
        ("on-prem", "available_onprem"),
        ("on-premise", "available_onprem"),
        ("available", "available_onprem"),
        ("Available in cloud", "available_cloud"),
        ("Available Cloud", "available_cloud"),
        ("Available cloud", "available_cloud"),
        ("Cloud", "available_cloud"),
        ("Preview", "preview"),
        ("research", "research"),
        ("Research, Development, or Internal (RDI)", "research"),
        ("unavailable", None),
        ("", None),
    ],
)
def test_spellings_of_availability(raw: str, slug: str | None) -> None:
    assert availability_slug(raw) == slug


def test_spellings_of_division() -> None:
    assert [division_slug(raw) for raw in ("closed", "Closed", "close", "open", "Open")] == ["closed"] * 3 + [
        "open"
    ] * 2
    assert division_slug("network") is None


@pytest.mark.parametrize(
    ("raw", "slug"),
    [
        ("NGC Pytorch 24.09, NGC HugeCTR 24.09, NVIDIA Nemo 24.09", "pytorch+hugectr+nemo"),
        ("NGC MXNet 23.04 , NGC PyTorch 22.09 , NGC PyTorch 23.04", "mxnet+pytorch"),
        ("Merlin HugeCTR with NVIDIA DL Frameworks Release 20.06", "hugectr"),
        (
            "DGL, Merlin HugeCTR NVIDIA Release 25.03; PyTorch, NeMo Framework NVIDIA Release 25.04",
            "dgl+hugectr+pytorch+nemo",
        ),
        ("PyTorch v1.11.0+cu113 and MosaicML composer v0.7.0", "pytorch+composer"),
        # Descriptions of v6.0.
        ("NVIDIA Megatron-Bridge 26.04", "megatron_bridge"),
        (
            "NVIDIA Megatron-Bridge 26.04-alpha.rc2 + Megatron-Core 26.04-alpha.rc2 on PyTorch (NGC 26.04)",
            "megatron_bridge+megatron+pytorch",
        ),
        ("NeMo 2.6.0rc0 + Megatron-LM core_r0.11.0", "nemo+megatron"),
        ("PyTorch + ROCm (Primus / NeMo for LLM workloads)", "pytorch+primus+nemo"),
        ("NeMo (flux1) / Primus + Megatron-LM (llama31_8b) on PyTorch ROCm", "nemo+primus+megatron+pytorch"),
        ("llama2-70B:Pytorch 2.10.0a0+git449b176,ROCM 7.2.0", "pytorch"),
        ("PyTorch, NeMo, Podman-HPC", "pytorch+nemo"),
        ("PaddlePaddle (branch: develop, commitID: 108aeb2)", "paddlepaddle"),
        ("TensorFlow 1.14 commit hash = faf9db515c4bf550daacc1c3a22fedf3ff5dde63", "tensorflow"),
        ("tinygrad, commit b5546912e24e0a864b35924da4efa5d71cfe368b", "tinygrad"),
        (
            "Lingvo-TF, https://github.com/tensorflow/lingvo.git, branch lingvo_mlperf_1.1",
            "lingvo+tensorflow",
        ),
        ("pytorch 1.9.0a0+2ecb2c7", "pytorch"),
        ("PyTorch 2.6.0a0+gitfc899bf", "pytorch"),
        ("NGC PyTorch Release 24.01 Deepspeed N8", "pytorch+deepspeed"),
        ("PyTorch 2.6.0, ROCm 6.4", "pytorch"),
        ("ROCm 6.4.0-47", "rocm"),
        ("TensorFlow 1.15 Poplar SDK 2.5.1", "tensorflow"),
        ("PopART Poplar SDK 2.5.1", "popart"),
        ("NVIDIA PyTorch/MxNeti/DGL", "pytorch+mxnet+dgl"),
        ("NGC MLPerf v2.1/2.0", "ngc_mlperf"),
        ("tf2.0", "tensorflow"),
        ("TenorFLow 2.2", "tensorflow"),
        ("NGC TensorFlow 22.09-tf1", "tensorflow"),
        ("SinianAI - Compiler_based Heterogeneous Hardware Acceleration System", "sinian"),
        ("MXNet NGC20.06", "mxnet"),
        ("MXNet NVIDIA Release 24.04 or PyTorch NVIDIA Release 24.04", "mxnet+pytorch"),
        ("Intel Caffe 1.1.2a", "caffe"),
        ("NeMo 2.1.0, Megatron-LM, PyTorch NVIDIA Release 25.09", "nemo+megatron+pytorch"),
        ("", None),
        ("24.09", None),
    ],
)
def test_spellings_of_frameworks(raw: str, slug: str | None) -> None:
    assert framework_slug(raw) == slug


def test_a_word_nobody_knows_keeps_the_text_raw_and_is_reported() -> None:
    found = framework_name("PyTorch 3.0, Frobnicator 7, Wibble/JAX")
    assert (found.slug, found.unknown) == (None, ("frobnicator", "wibble"))
    assert framework_name("MXNetwork 1.0").unknown == ("mxnetwork",)


def test_a_text_that_is_no_list_of_names_is_not_searched() -> None:
    found = framework_name("pytorch " * 100_000)
    assert found.slug is None
    assert "800,000 characters" in found.unknown[0]


@pytest.mark.law
@given(st.text(max_size=120))
def test_any_text_gives_a_slug_or_none(raw: str) -> None:
    found = framework_name(raw)
    assert found.slug is None or not found.unknown


@pytest.mark.law
@given(st.lists(st.sampled_from(["PyTorch", "JAX", "NeMo", "HugeCTR"]), min_size=1, max_size=4, unique=True))
def test_versions_and_separators_do_not_matter(listed: list[str]) -> None:
    expected = "+".join(name.casefold() for name in listed)
    for separator, version in (
        (", ", " 24.09"),
        ("/", ""),
        (" + ", " v1.2.3rc1"),
        ("; ", " NVIDIA Release 25.04"),
    ):
        assert framework_slug(separator.join(name + version for name in listed)) == expected


def stated(text: str, field: str) -> list[str]:
    """Values of a field of a system description, which need not be valid JSON."""
    found = re.findall(rf'"{field}"\s*:\s*("(?:[^"\\\n]|\\.)*")', text)
    return [str(json.loads(value, strict=False)) for value in found]


@pytest.mark.truth
@pytest.mark.parametrize(
    "round_name", ["v0.7", "v1.0", "v1.1", "v2.0", "v2.1", "v3.0", "v3.1", "v4.0", "v4.1", "v5.0", "v5.1"]
)
def test_every_spelling_of_a_round_resolves(data_dir: Path, round_name: str) -> None:
    source = open_source(data_dir / "mlperf" / f"training_results_{round_name}.tar.zst")
    checked, statuses, divisions = 0, set(), set()
    for blob in source.files(lambda path, _size: "/systems/" in path and path.endswith(".json")):
        text = blob.data.decode("utf-8", "replace")
        for raw in stated(text, "framework"):
            found = framework_name(raw)
            assert found.slug is not None or not (raw and found.unknown), (blob.path, raw, found)
            checked += 1
        statuses |= {(blob.path, raw) for raw in stated(text, "status")}
        divisions |= {(blob.path, raw) for raw in stated(text, "division")}
    assert min(checked, len(statuses), len(divisions)) > 30
    assert [each for each in statuses if availability_slug(each[1]) is None] == []
    assert [each for each in divisions if division_slug(each[1]) is None] == []


def test_no_spelling_belongs_to_two_names() -> None:
    table = tomllib.loads(mlperf.NAMES_FILE.read_text(encoding="utf-8"))
    for kind in ("availability", "division", "framework"):
        names = [{canonical(each) for each in (slug, *name["aliases"])} for slug, name in table[kind].items()]
        assert sum(map(len, names)) == len(set.union(*names)) > 1


def test_the_file_to_edit_is_named() -> None:
    assert mlperf.EDIT.endswith("names.toml")
