"""Each section says what it was given, and says so when it was given nothing."""

from dataclasses import replace

import polars as pl

from equipoise.report import blocks
from equipoise.report.sections import (
    SECTIONS,
    claims,
    energy,
    entries,
    pointers,
    shared,
    table_one,
    workloads,
)


def flat(found):
    """All blocks, those inside folds too."""
    for block in found:
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
    assert all(hasattr(findings, need) for section in SECTIONS for need in section.needs)


def test_table_one_stands_beside_the_study_and_names_each_difference(findings):
    found = table_one.SECTION.blocks(findings)
    (row,) = one(found, blocks.Table).rows
    assert [cell.text for cell in row] == ["BERT", "Dell / XE-4", "4", "5", "4", "4", "10.000", "10.00"]
    assert row[2].detail == "1 unscored"
    assert "the study counts 5" in text(found)


def test_table_one_without_a_study_has_its_own_figures_only(findings):
    table = replace(findings.workloads[0].table, published=None, differences=(), reference=None)
    found = table_one.SECTION.blocks(with_workload(findings, table=table))
    assert len(one(found, blocks.Table).columns) == 5
    assert "prints no such table for v9.9" in text(found)


def test_a_claim_shows_both_verdicts_its_rule_and_its_figures(findings):
    said = text(claims.SECTION.blocks(findings))
    for words in (
        "its way: holds",
        "like for like: reverses",
        "Rule: ratio from 0.5 to 2.",
        "seen at 64: 0.4.",
        "v9.9/Dell/XE-64/bert",
    ):
        assert words in said


def test_figures_others_ascribe_to_the_study_are_called_what_they_are(findings):
    said = text(claims.SECTION.blocks(findings))
    assert "+99 % by Dell" in said
    assert "it holds no such figure" in said
    assert "ascribe" not in text(claims.SECTION.blocks(replace(findings, attributed=())))


def test_a_claim_nobody_could_test_says_what_is_missing(findings):
    assert "too few sizes." in text(claims.SECTION.blocks(findings))


def test_a_claim_asked_of_other_workloads_is_set_apart(findings):
    elsewhere = replace(findings.claims[0], workloads=("resnet50",))
    said = text(claims.SECTION.blocks(replace(findings, claims=(*findings.claims, elsewhere))))
    assert "2 claims of the study" in said
    assert "asked of the others" in said
    assert "Tested on ResNet-50." in said


def test_the_figures_of_a_workload_are_three(findings):
    panels = [block for block in workloads.SECTION.blocks(findings) if isinstance(block, blocks.Panels)]
    assert [len(panel.charts) for panel in panels] == [1, 2]
    systems = panels[0].charts[0]
    assert [series.name for series in systems.series] == ["group 1", "group 2"]
    assert systems.series[0].weights == (3, 3)
    assert systems.y.categories == ("H100 SXM5 80 GB",)


def test_without_groups_the_reason_is_given(findings):
    lacking = with_workload(findings, grouping=None, grouping_missing="two systems only")
    assert "No K-means groups: two systems only." in text(workloads.SECTION.blocks(lacking))


def test_entries_on_processors_alone_are_counted_not_drawn(findings):
    frame = findings.workloads[0].entries
    size = pl.when(pl.col("num_accelerators") == 4).then(0).otherwise(pl.col("num_accelerators"))
    found = workloads.SECTION.blocks(
        with_workload(findings, entries=frame.with_columns(num_accelerators=size))
    )
    assert "1 scored entry without accelerators" in text(found)


def test_a_workload_without_any_score_says_so(findings):
    frame = findings.workloads[0].entries.with_columns(score_s=pl.lit(None, pl.Float64))
    empty = with_workload(findings, entries=frame, pointers=())
    assert "No entry of this workload has a score" in text(workloads.SECTION.blocks(empty))
    assert "nothing to point at" in text(pointers.SECTION.blocks(empty))


def test_energy_is_shown_where_it_was_measured(findings):
    found = energy.SECTION.blocks(findings)
    run, sample = one(found, blocks.Panels).charts
    assert run.series[0].y == (1.5e6, 2.5e6)
    assert sample.series[0].y == (0.6, 1.0)
    assert "1.5 MJ" in text(found)


def test_a_single_point_of_energy_makes_a_table_but_no_figure(findings):
    single = with_workload(findings, energy=findings.workloads[0].energy.head(1))
    found = energy.SECTION.blocks(single)
    assert not [block for block in found if isinstance(block, blocks.Panels)]
    assert len(one(found, blocks.Table).rows) == 1


def test_energy_nobody_measured_is_not_guessed(findings):
    none = with_workload(findings, energy=findings.workloads[0].energy.head(0))
    assert "No entry of these workloads logged its power" in text(energy.SECTION.blocks(none))


def test_entries_without_a_score_are_listed_with_the_reason(findings):
    assert "2 of 10 logs missing" in text(entries.SECTION.blocks(findings))


def test_shared_systems_and_families_have_a_column_a_workload(findings):
    systems, families = [
        block for block in shared.SECTION.blocks(findings) if isinstance(block, blocks.Table)
    ]
    assert [column.title for column in systems.columns] == ["System", "Size", "BERT"]
    assert [cell.text for cell in families.rows[0]][-1] == "0.400"


def test_a_pointer_says_what_for_and_why(findings):
    (tile,) = one(pointers.SECTION.blocks(findings), blocks.Tiles).items
    assert (tile.label, tile.words) == ("For speed", "The shortest time of all.")
    assert "E' 0.500" in tile.detail
    assert "E 0.400" in tile.detail
