"""Each section shows what was found, and why where nothing was."""

import re

import polars as pl
from msgspec.structs import replace

from equipoise.report import blocks, figures
from equipoise.report.charts import SYMBOLS
from equipoise.report.format import capital
from equipoise.report.pages import accuracy
from equipoise.report.pages.study import SECTIONS, STUDY, balance, batches, claims, entries, losses, workloads
from equipoise.study.diminishing_returns import SYMPTOMS, Balances, Unanswered


def flat(found):
    """All blocks, those inside folds too."""
    for block in blocks.filled(found):
        yield block
        if isinstance(block, blocks.Fold):
            yield from flat(block.blocks)


def text(found):
    """Everything a section says, in one string."""
    parts = []
    for block in flat(found):
        match block:
            case blocks.Prose(spans=spans):
                parts += [getattr(span, "text", span) for span in spans]
            case blocks.Bullets(items=items):
                parts += [getattr(span, "text", span) for item in items for span in item]
            case blocks.Table(rows=rows):
                for cell in (cell for row in rows for cell in row):
                    parts += [cell.text, cell.detail or "", cell.badge.text if cell.badge else ""]
            case blocks.Tiles(items=items):
                parts += [
                    part for tile in items for part in (tile.label, tile.value, tile.detail, tile.words)
                ]
            case blocks.Fold(title=title, badges=badges):
                parts += [title, *(badge.text for badge in badges)]
            case blocks.Heading(text=words):
                parts.append(words)
    return " ".join("".join(parts).split())


def one(found, kind):
    (block,) = [block for block in flat(found) if isinstance(block, kind)]
    return block


def with_workload(findings, **changes):
    return replace(findings, workloads=(replace(findings.workloads[0], **changes),))


def test_names_of_sections_are_unique_and_their_needs_are_fields(findings):
    names = [section.name for section in SECTIONS]
    assert len(names) == len(set(names))
    needs = sorted({need for section in SECTIONS for need in section.needs})
    assert needs
    assert [need for need in needs if not hasattr(findings, need)] == []


def test_table_one_has_the_figures_of_the_study_and_names_each_difference(findings):
    found = claims.table_one_blocks(findings)
    (row,) = one(found, blocks.Table).rows
    assert [cell.text for cell in row] == ["BERT", "Dell / XE-4", "4", "5", "4", "4", "10.000", "10.00"]
    assert row[2].detail == "1 unscored"
    assert findings.workloads[0].table.differences[0] in text(found)


def test_table_one_without_a_study_has_its_own_figures_only(findings):
    table = replace(findings.workloads[0].table, published=None, differences=(), reference=None)
    found = claims.table_one_blocks(with_workload(findings, table=table))
    assert len(one(found, blocks.Table).columns) == 5


def test_a_claim_shows_both_verdicts_its_rule_and_its_figures(findings):
    said = text(claims.claims_blocks(findings))
    part = findings.claims[0].parts[0]
    for words in (
        f": {part.study_method.verdict}",
        f": {part.like_for_like.verdict}",
        part.rule,
        part.like_for_like.words,
        "v9.9/Dell/XE-64/bert",
    ):
        assert words in said


def test_figures_others_attribute_to_the_study_have_a_table(findings):
    found = claims.claims_blocks(findings)
    said = text(found)
    assert "+99 % by Dell" in said
    assert findings.attributed[0].found in said
    names = [each.name for each in flat(found) if isinstance(each, blocks.Table)]
    assert "attributed" in names
    without = flat(claims.claims_blocks(replace(findings, attributed=())))
    assert "attributed" not in [each.name for each in without if isinstance(each, blocks.Table)]


def test_a_claim_nobody_could_test_says_what_is_missing(findings):
    assert findings.claims[1].study_method.words in text(claims.claims_blocks(findings))


def test_a_claim_tested_on_other_workloads_is_set_apart(findings):
    elsewhere = replace(findings.claims[0], workloads=("resnet50",))
    found = claims.claims_blocks(replace(findings, claims=(*findings.claims, elsewhere)))
    assert one(found[:1], blocks.Prose).spans[0] == blocks.Strong("2 claims")
    folds = [each.name for each in found if isinstance(each, blocks.Fold)]
    assert folds == ["claim-1", "claim-2", "claim-3"]
    assert "Tested on ResNet-50." in text(found)


def test_the_figures_of_a_workload_are_three(findings):
    panels = [block for block in workloads.workloads_blocks(findings) if isinstance(block, blocks.Panels)]
    assert [len(panel.charts) for panel in panels] == [1, 2]
    systems = panels[0].charts[0]
    assert [series.name for series in systems.series] == ["group 1", "group 2"]
    assert systems.series[0].weights == (3, 3)
    assert systems.y.categories == ("H100 SXM5 80 GB",)


def test_without_groups_the_reason_is_given(findings):
    lacking = with_workload(findings, grouping=None, grouping_missing="only 2 systems")
    assert ": only 2 systems." in text(workloads.workloads_blocks(lacking))


def test_entries_on_processors_alone_are_counted_not_drawn(findings):
    frame = findings.workloads[0].entries
    size = pl.when(pl.col("num_accelerators") == 4).then(0).otherwise(pl.col("num_accelerators"))
    found = workloads.workloads_blocks(
        with_workload(findings, entries=frame.with_columns(num_accelerators=size))
    )
    assert "1 scored entry" in text(found)


def test_a_workload_without_any_score_says_so(findings):
    frame = findings.workloads[0].entries.with_columns(score_s=pl.lit(None, pl.Float64))
    empty = with_workload(findings, entries=frame, pointers=())
    assert {type(each) for each in flat(workloads.workloads_blocks(empty))} == {blocks.Heading, blocks.Prose}
    assert not [each for each in entries.pointers_blocks(empty) if isinstance(each, blocks.Tiles)]


def test_energy_is_shown_where_it_was_measured(findings):
    found = batches.energy_blocks(findings)
    run, sample = one(found, blocks.Panels).charts
    assert run.series[0].y == (1.5e6, 2.5e6)
    assert sample.series[0].y == (0.6, 1.0)
    assert "1.5 MJ" in text(found)


def test_a_single_point_of_energy_makes_a_table_but_no_figure(findings):
    single = with_workload(findings, energy=findings.workloads[0].energy.head(1))
    found = batches.energy_blocks(single)
    assert not [block for block in flat(found) if isinstance(block, blocks.Panels)]
    assert len(one(found, blocks.Table).rows) == 1


def test_energy_nobody_measured_is_not_guessed(findings):
    none = with_workload(findings, energy=findings.workloads[0].energy.head(0))
    assert [type(each) for each in flat(batches.energy_blocks(none))] == [blocks.Prose]


def test_entries_without_a_score_are_listed_with_the_reason(findings):
    assert "2 of 10 logs missing" in text(entries.entries_blocks(findings))


def test_shared_systems_and_families_have_a_column_per_workload(findings):
    systems, families = [
        block for block in workloads.shared_blocks(findings) if isinstance(block, blocks.Table)
    ]
    assert [column.title for column in systems.columns] == ["System", "Size", "BERT"]
    assert [cell.text for cell in families.rows[0]][-1] == "0.400"


def test_a_pointer_says_what_for_and_why(findings):
    (tile,) = one(entries.pointers_blocks(findings), blocks.Tiles).items
    assert tile.label == entries.LABELS["speed"]
    assert tile.words == f"{capital(findings.workloads[0].pointers[0].words)}."
    assert "E' 0.500" in tile.detail
    assert "E 0.400" in tile.detail


def test_losses_name_each_cause_with_its_share_of_the_whole(findings):
    said = text(losses.losses_blocks(findings))
    # 1 / 1.322 and 0.322 / 1.322 of the doublings lost at 64.
    assert "E is 0.400, 1.32 doublings lost. Of these 76 % throughput and 24 % batch growth" in said
    found = findings.workloads[0]
    assert found.curve_diagnoses[0].words in said
    assert found.diagnoses[0].words.partition(": ")[2] in said
    (rule,) = (each.rule for each in SYMPTOMS if each.name == found.diagnoses[0].symptom)
    assert rule in said
    assert f"H100 SXM5 80 GB at 8 and 64: {found.losses['factors_missing'][2]}" in said


def test_losses_stack_what_is_known_and_show_the_rest_as_unknown(findings):
    (chart,) = one(losses.losses_blocks(findings), blocks.Panels).charts
    parts = {part.name: part.heights for part in chart.series}
    assert chart.categories == ("4", "8", "64")
    assert parts == {
        "batch growth": (0.0, None, 0.322),
        "throughput": (0.0, None, 1.0),
        "unknown": (None, 0.152, None),
    }
    assert chart.labels == ("1.00", "0.900", "0.400")


def test_losses_without_two_sizes_say_so(findings):
    found = losses.losses_blocks(
        with_workload(findings, losses=findings.workloads[0].losses.head(1), diagnoses=(), curve_diagnoses=())
    )
    kinds = {type(block) for block in flat(found)}
    assert blocks.Prose in kinds
    assert not kinds & {blocks.Table, blocks.Panels}


def test_every_symptom_is_in_the_table_with_its_entry(findings):
    (table,) = [
        block
        for block in flat(losses.losses_blocks(findings))
        if isinstance(block, blocks.Table) and block.name == "diagnoses"
    ]
    assert [row[3].text for row in table.rows] == ["diminishing returns", "batch starvation"]
    assert [row[2].text for row in table.rows] == ["", "64"]


def test_the_batch_law_stands_with_its_intervals(findings):
    found = batches.batches_blocks(findings)
    (row,) = one(found, blocks.Table).rows
    assert [cell.text for cell in row[:4]] == ["BERT", "2,000,000", "16,000", "3"]
    assert row[2].detail == "14,000\N{EN DASH}19,000"
    (chart,) = one(found, blocks.Panels).charts
    assert chart.bands[0].low == (2.0, 2.8)  # in millions, as the axis says
    assert "(millions)" in chart.y.title


def test_a_batch_without_an_upper_bound_is_at_least(findings):
    growth = findings.workloads[0].batches
    unbounded = replace(growth, batch_critical=replace(growth.batch_critical, high=float("inf")))
    (row,) = one(batches.batches_blocks(with_workload(findings, batches=unbounded)), blocks.Table).rows
    assert row[2].text == "at least 14,000"


def test_a_workload_without_a_batch_law_says_what_is_missing(findings):
    unknown = Unanswered(subject="bert", reason="Two batches only.", missing=("a batch of 4,096",))
    said = text(batches.batches_blocks(with_workload(findings, batches=unknown)))
    assert re.search(rf"{unknown.reason} .*: {unknown.missing[0]}\.", said)


def test_equilibria_stand_with_interval_censoring_and_bill(findings):
    found = balance.balance_blocks(findings)
    first, second = one(found, blocks.Table).rows
    # 32 accelerators for 2 minutes are 1.07 accelerator-hours, at 3 USD; 32 x 700 W x 1.18 x 120 s = 0.881 kWh.
    assert [cell.text for cell in first] == [
        "H100 SXM5 80 GB", "balance", "32", "0.625", "2 min", "1.07", "3.20", "881 Wh", "0.441",
    ]  # fmt: skip
    assert (first[1].detail, first[2].detail) == ("the answer", "16 to 48")
    assert first[7].detail == "modelled"
    assert (second[2].text, second[2].detail) == ("at least 64", "64 or more")
    assert (second[7].text, second[7].detail) == ("2 kWh", "measured")


def test_the_answer_comes_first_and_rates_name_their_source(findings):
    said = text(balance.balance_blocks(findings))
    (found,), (unknown,) = findings.workloads[0].balances.found, findings.workloads[0].balances.unanswered
    assert f"H100 SXM5 80 GB: 32 (balance). {capital(found.words[0])}." in said
    assert "3.00 USD per accelerator-hour (2.00\N{EN DASH}4.00; by Dell)" in said
    assert re.search(rf"{unknown.reason} .*: {unknown.missing[0]}\.", said)


def test_the_curve_is_dotted_beyond_the_published_sizes(findings):
    (chart,) = one(balance.balance_blocks(findings), blocks.Panels).charts
    beyond = [series for series in chart.series if series.is_extrapolated]
    assert [series.x for series in beyond] == [(64.0, 128.0)]
    assert [note.text for note in chart.notes] == ["32"]


def test_a_workload_with_one_size_each_has_no_curve(findings):
    found = balance.balance_blocks(with_workload(findings, balances=Balances(found=(), unanswered=())))
    kinds = {type(block) for block in flat(found)}
    assert blocks.Prose in kinds
    assert not kinds & {blocks.Table, blocks.Panels}


def test_the_record_is_compared_with_baselines(findings):
    found = accuracy.record_blocks(findings.record)
    every, near = one(found, blocks.Table).rows
    assert [cell.text for cell in every[1:]] == ["all", "50", "6 %", "35 %", "\N{EN DASH}", "20 %", "88 %"]
    assert [cell.text for cell in near[1:4]] == ["up to 2\N{MULTIPLICATION SIGN}", "40", "6 %"]
    assert "median error 6 % (perfect scaling 35 %)" in text(found)


def test_without_a_record_its_section_is_left_out(findings):
    (section,) = (each for each in SECTIONS if each.name == "record")
    assert section.applies(findings)
    assert not section.applies(replace(findings, record=None))


def test_series_of_a_chart_are_told_apart_without_colours(findings):
    found = figures.charts(STUDY, findings)
    assert found
    for name, chart in found.items():
        series = [each for each in chart.series if not getattr(each, "is_curve", False)]
        symbols = {each.mark.symbol for each in series}
        # Groups of many systems are more than there are symbols.
        assert len(symbols) == min(len(series), len(SYMBOLS)), name
